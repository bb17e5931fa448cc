"""transformers' side of tests/integration/gpt2_transformers_test.cpp. Losses are the mean cross-entropy of TEXT's bytes in
sequences of CONTEXT, computed in f64.

  gpt2_transformers.py package                         prints the versions; exit code 1 without the packages
  gpt2_transformers.py read FOLDER TEXT CONTEXT        the loss of the model in FOLDER
  gpt2_transformers.py make FOLDER TEXT CONTEXT MODEL  the loss of random weights, with the sizes of the model in the folder MODEL;
                                                       FOLDER gets them in f16, with the masks that older files have
"""

import pathlib
import sys

try:
    import safetensors.torch
    import torch
    import transformers
except ImportError:
    sys.exit(1)


def print_loss(model, text, context):
    tokens = torch.tensor(list(pathlib.Path(text).read_bytes()))
    with torch.no_grad():
        scores = model.double().eval()(tokens[:-1].view(-1, context)).logits
    print(torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[1:]).item())


def read(folder, text, context):
    model, report = transformers.GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report  # no tensor is missing, left over or of another shape
    print_loss(model, text, context)


def make(folder, text, context, other):
    torch.manual_seed(7)
    config = transformers.GPT2Config.from_pretrained(other)
    model = transformers.GPT2LMHeadModel(config).half()
    model.save_pretrained(folder)
    path = pathlib.Path(folder) / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    assert "transformer.wte.weight" in tensors
    for i in range(config.n_layer):
        tensors[f"transformer.h.{i}.attn.bias"] = torch.ones(1, 1, context, context, dtype=torch.bool)
        tensors[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    print_loss(model, text, context)


if __name__ == "__main__":
    if sys.argv[1] == "package":
        print("transformers", transformers.__version__, "torch", torch.__version__)
    elif sys.argv[1] == "read":
        read(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        make(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
