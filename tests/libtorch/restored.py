"""Goes on in PyTorch from files of dtrain's.

  restored.py sharded FILE    checkpoints of tests/libtorch/sharded_probe.cpp, by the lines of examples/guide/checkpoints.md: FILE has a sharded AdamW
                              after three steps, FILE.whole LibTorch's AdamW after six: three steps lead from one to the other
  restored.py weights FILE    files of tests/libtorch/checkpoint_probe.cpp: FILE.shared has two shared tensors, FILE.types elements of all types
"""

import pathlib
import re
import sys

import safetensors.torch
import torch

page = pathlib.Path(__file__).resolve().parents[2] / "examples" / "guide" / "checkpoints.md"
exec(next(block for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL) if "def restore(" in block))


def restored(file):
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.5, weight_decay=0.9)
    restore(net, optimizer, file)
    assert optimizer.param_groups[0]["lr"] == 0.02 and optimizer.param_groups[0]["weight_decay"] == 0.1, "options are the file's"
    return net, optimizer


def compare(net, optimizer, other, other_optimizer):
    for (name, mine), theirs in zip(net.named_parameters(), other.parameters(), strict=True):
        state, wanted = optimizer.state[mine], other_optimizer.state[theirs]
        for what, a, b in [("value", mine, theirs)] + [(key, state[key], wanted[key]) for key in ("exp_avg", "exp_avg_sq", "step")]:
            difference = (a.double() - b.double()).abs().max().item()
            print(f"{name} {what} differs by {difference:.1e}")
            assert difference < 1e-6, f"{what} of {name}"


class Shared(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = self.again = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("scale", torch.zeros(2))
        self.register_buffer("scale_again", self.scale)


def check_weights(file):
    net = Shared()
    safetensors.torch.load_model(net, file + ".shared")
    assert net.again.tolist() == [5, 5] and net.scale_again.tolist() == [7, 7], "shared tensors are loaded"
    tensors = {name: (tensor.dtype, tensor.tolist()) for name, tensor in safetensors.torch.load_file(file + ".types").items()}
    assert tensors == {
        "flag": (torch.bool, [True, False]),
        "small": (torch.int8, [-3, 4]),
        "short": (torch.int16, [[-300] * 3, [400] * 3]),
        "complex": (torch.complex64, [1 - 3j, 2 - 4j]),
        "wide": (torch.float64, [[1, 1]]),
        "deep": (torch.int16, [1, 1]),
        "single": (torch.int16, 5),
    }, tensors


def check_sharded(file):
    net, optimizer = restored(file)
    for step in range(3, 6):
        optimizer.zero_grad()
        net(torch.linspace(-1, 1, 24).reshape(4, 6) + 0.1 * step).square().mean().backward()
        optimizer.step()
    compare(net, optimizer, *restored(file + ".whole"))


{"sharded": check_sharded, "weights": check_weights}[sys.argv[1]](sys.argv[2])
