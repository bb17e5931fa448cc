// ctest: TIMEOUT 120
// The folder of weights and config.json that gpt2 shares with transformers.

#include "examples/gpt2/pretrained.hpp"
#include "support/contains.hpp"
#include "support/summary_file.hpp"
#include "support/temporary_directory.hpp"
#include "support/thread_group.hpp"
#include "unit/examples/prelude.hpp"

namespace gpt2_pretrained_test {

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;
using Group = dtrain::ProcessGroup<Policy>;

constexpr gpt2::ModelShape small{.layers = 2, .channels = 8, .heads = 2, .context = 4};

gpt2::Batch text() {
  return {{1, 2, 3, 250}, {2, 3, 250, 0}};
}

void write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// What loading the folder into a model of `shape` throws.
std::string refusal(const std::string& folder, const gpt2::ModelShape& shape) {
  std::string sentence = "nothing was thrown";
  support::run_well<Policy>(1, [&](const Group& group) {
    gpt2::Model model(shape, 1, 3);
    try {
      gpt2::load_pretrained(group, folder, shape, model);
    } catch (const dtrain::Error& error) {
      sentence = error.what();
    }
  });
  return sentence;
}

/// Saves a model's parameters in `folder` under other names, and a tensor that is no weight.
template <class Rename>
void save_renamed(const Group& group, const std::string& folder, gpt2::Model& model, Rename rename,
                  const std::string& extra) {
  std::vector<dtrain::NamedTensor> list;
  for (const dtrain::Parameter& parameter : model.parameters())
    list.push_back({rename(parameter.name), parameter.value});
  float mask = 1;
  list.push_back({extra, dtrain::tensor_view(&mask, {})});
  dtrain::save_safetensors(group, folder + "/model.safetensors", list);
}

TEST_CASE("gpt2's parameters have the names and shapes of transformers' GPT2Model") {
  gpt2::Model model(small, 1, 3);
  std::vector<std::string> found;
  for (const dtrain::Parameter& parameter : model.parameters())
    found.push_back(parameter.name + " " + dtrain::to_string(parameter.value.shape));
  std::vector<std::string> wanted{"wte.weight [256, 8]", "wpe.weight [4, 8]"};
  for (const std::string layer : {"h.0.", "h.1."}) {
    for (const char* const name :
         {"ln_1.weight [8]", "ln_1.bias [8]", "attn.c_attn.weight [8, 24]", "attn.c_attn.bias [24]",
          "attn.c_proj.weight [8, 8]", "attn.c_proj.bias [8]", "ln_2.weight [8]", "ln_2.bias [8]",
          "mlp.c_fc.weight [8, 32]", "mlp.c_fc.bias [32]", "mlp.c_proj.weight [32, 8]", "mlp.c_proj.bias [8]"}) {
      wanted.push_back(layer + name);
    }
  }
  wanted.insert(wanted.end(), {"ln_f.weight [8]", "ln_f.bias [8]"});
  CHECK(found == wanted);
}

TEST_CASE("gpt2's config.json is transformers' GPT2Config of the model") {
  CHECK(gpt2::config_json(small) ==
        "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n  \"vocab_size\": 256,\n"
        "  \"n_positions\": 4,\n  \"n_embd\": 8,\n  \"n_layer\": 2,\n  \"n_head\": 2,\n"
        "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n"
        "  \"bos_token_id\": 0,\n  \"eos_token_id\": 0\n}\n");
}

TEST_CASE("gpt2's weights, saved and loaded on every rank, give the same loss, under each of transformers' names") {
  const support::TemporaryDirectory files;
  const std::string folder = files.path + "/new/folder";
  support::run_well<Policy>(2, [&](const Group& group) {
    gpt2::Model model(small, 1, 3);
    const double loss = model.forward(text());
    const auto check_loaded = [&] {
      gpt2::Model other(small, 1, 4);
      if (other.forward(text()) == loss) throw std::logic_error("the seed does not matter");
      gpt2::load_pretrained(group, folder, small, other);
      if (other.forward(text()) != loss) throw std::logic_error("another loss");
    };
    gpt2::make_folder(group, folder);
    gpt2::save_pretrained(group, folder, small, model);
    check_loaded();
    save_renamed(
        group, folder, model, [](const std::string& name) { return "transformer." + name; },
        "transformer.h.0.attn.bias");
    check_loaded();
    save_renamed(
        group, folder, model, [](const std::string& name) { return name == "wte.weight" ? "lm_head.weight" : name; },
        "h.1.attn.masked_bias");
    check_loaded();
  });
  CHECK(support::file_content(folder + "/config.json") == gpt2::config_json(small));
}

TEST_CASE("weights of another model are refused in one sentence, before any value changes") {
  const support::TemporaryDirectory files;
  const std::string& folder = files.path;
  const std::string config = folder + "/config.json";
  CHECK_CONTAINS(refusal(folder, small), "reading the weights " + folder + "/model.safetensors failed");
  support::run_well<Policy>(1, [&](const Group& group) {
    gpt2::Model model(small, 1, 3);
    gpt2::save_pretrained(group, folder, small, model);
  });
  gpt2::ModelShape other = small;
  other.heads = 4;  // the shapes are the same
  CHECK(refusal(folder, other) == config + " has n_head \"2\", and --heads is 4; give it the value of the file");
  write(config, R"({"vocab_size": 50257})");
  CHECK(refusal(folder, small) ==
        config + " has vocab_size \"50257\", and this model has 256, since its tokens are bytes; load one of bytes");
  write(config, "{}");
  CHECK(refusal(folder, small) == "nothing was thrown");
  other = small;
  other.layers = 1;
  CHECK_CONTAINS(refusal(folder, other), "/model.safetensors has a tensor \"h.1.",
                 ", which this model lacks; give --layers");
  other.layers = 3;
  CHECK_CONTAINS(refusal(folder, other), "it has no tensor 'h.2.");
  other = small;
  other.context = 3;
  CHECK_CONTAINS(refusal(folder, other), "its tensor 'wpe.weight' is f32 [4, 8], the program's is f32 [3, 8]");
  for (const std::string& text :
       {std::string("{"), std::string("[]"), "{}" + std::string(dtrain::identity::longest_json, ' ')}) {
    write(config, text);
    CHECK_CONTAINS(refusal(folder, small), "is no JSON object of at most 256 KiB");
  }
}

TEST_CASE("a folder that cannot be written is refused before the training") {
  const support::TemporaryDirectory files;
  write(files.path + "/file", "");
  support::run_well<Policy>(1, [&](const Group& group) {
    CHECK_ERROR(gpt2::make_folder(group, files.path + "/file/folder"), dtrain::Errc::usage, "nothing can be saved in ");
  });
}

}  // namespace gpt2_pretrained_test
