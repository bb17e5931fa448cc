#pragma once
/// @file
/// A folder of model.safetensors and config.json, as the Python package transformers names and reads them: what a
/// training has reached, and what one begins with.

#include <dtrain/dtrain.hpp>

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "../shared/atomic_file.hpp"
#include "../shared/flags.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/identity/formats/json.hpp"
#include "model_shape.hpp"

namespace gpt2 {

namespace detail {

/// A size of the model: its key in config.json, and its flag here.
struct ConfigNumber {
  std::string_view key;
  std::string_view flag;  ///< empty: no flag changes it
  Index value;
};

inline std::array<ConfigNumber, 5> config_numbers(const ModelShape& shape) {
  return {{{"vocab_size", "", vocabulary},
           {"n_positions", "--context", shape.context},
           {"n_embd", "--channels", shape.channels},
           {"n_layer", "--layers", shape.layers},
           {"n_head", "--heads", shape.heads}}};
}

[[noreturn]] inline void refuse_folder(const std::string& sentence) {
  throw dtrain::Error(dtrain::Errc::usage, dtrain::sanitize(sentence));  // it has names from a file
}

/// Without the file, shapes alone tell whether the model is this one, and the number of heads is in no shape.
/// @throws dtrain::Error (usage) for the config.json of another model than the flags'
inline void check_config(const std::string& path, const ModelShape& shape) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  std::string text(dtrain::identity::longest_json + 1, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  const std::optional<dtrain::identity::Json> config = dtrain::identity::parse_json(text);
  if (!config || !config->is(dtrain::identity::Json::Type::object)) {
    refuse_folder(path + " is no JSON object of at most 256 KiB; copy it again, or remove it");
  }
  for (const ConfigNumber& number : config_numbers(shape)) {
    const dtrain::identity::Json* const found = config->find(number.key);
    const std::string own = std::to_string(number.value);
    if (found == nullptr || found->text == own) continue;
    const std::string sentence =
        path + " has " + std::string(number.key) + ' ' + shared::quoted(found->text) + ", and ";
    if (number.flag.empty())
      refuse_folder(sentence + "this model has " + own + ", since its tokens are bytes; load one of bytes");
    refuse_folder(sentence + std::string(number.flag) + " is " + own + "; give it the value of the file");
  }
}

/// A mask of attention, which some files contain beside the weights.
inline bool is_mask(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

/// The name in a file of `names` for a parameter: the same, or as in GPT2LMHeadModel with its prefix, and for the
/// token embeddings with their second name. The same if the file has none of these.
inline std::string name_in_file(const std::set<std::string>& names, const std::string& own) {
  std::vector<std::string> candidates{own, "transformer." + own};
  if (own == "wte.weight") candidates.emplace_back("lm_head.weight");
  for (const std::string& candidate : candidates) {
    if (names.contains(candidate)) return candidate;
  }
  return own;
}

/// @returns the name in the file of each parameter @throws dtrain::Error (usage) if the file has weights that no
/// parameter takes; as dtrain::safetensors_names
inline std::map<std::string, std::string> names_in_file(const std::string& path,
                                                        const std::vector<dtrain::Parameter>& parameters) {
  const std::vector<std::string> list = dtrain::safetensors_names(path);
  std::set<std::string> names(list.begin(), list.end());
  std::map<std::string, std::string> all;
  for (const dtrain::Parameter& parameter : parameters) {
    all[parameter.name] = name_in_file(names, parameter.name);
  }
  std::erase_if(names, is_mask);
  for (const auto& [own, name] : all) {
    names.erase(name);
  }
  if (names.empty()) return all;
  refuse_folder(path + " has a tensor " + shared::quoted(*names.begin()) +
                ", which this model lacks; give --layers and the other flags of the model in the file");
}

}  // namespace detail

/// The model as transformers' GPT2Config has it.
inline std::string config_json(const ModelShape& shape) {
  std::string numbers;
  for (const detail::ConfigNumber& number : detail::config_numbers(shape)) {
    numbers += "  \"" + std::string(number.key) + "\": " + std::to_string(number.value) + ",\n";
  }
  return "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n" + numbers +
         "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n"
         "  \"bos_token_id\": 0,\n  \"eos_token_id\": 0\n}\n";
}

/// Makes `folder` if it is missing, on the rank that will write there.
/// @throws dtrain::Error (usage) in one sentence if that rank cannot write there: hours later it would be too late.
template <class Group>
void make_folder(const Group& group, const std::string& folder) {
  if (folder.empty() || group.rank() != 0) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && ::access(folder.c_str(), W_OK) != 0) error.assign(errno, std::generic_category());
  if (!error) return;
  detail::refuse_folder("nothing can be saved in the folder " + folder + " of --save (" + error.message() +
                        "); name another");
}

/// The parameters' present values. Collective, blocking.
template <class Group, class Model>
void save_pretrained(const Group& group, const std::string& folder, const ModelShape& shape, Model& model) {
  if (group.rank() == 0) {
    const std::string config = config_json(shape);
    shared::write_file_atomically(folder + "/config.json", std::as_bytes(std::span(config)));
  }
  dtrain::save_safetensors(group, folder + "/model.safetensors", model);
}

/// Every rank's parameters get the values of the file that rank 0 reads. Before an optimizer is made that keeps weights
/// of its own. Collective, blocking.
/// @throws dtrain::Error in one sentence for the weights of another model.
template <class Group, class Model>
void load_pretrained(const Group& group, const std::string& folder, const ModelShape& shape, Model& model) {
  const std::string path = folder + "/model.safetensors";
  std::map<std::string, std::string> names;
  if (group.rank() == 0) {
    detail::check_config(folder + "/config.json", shape);
    names = detail::names_in_file(path, model.parameters());
  }
  // Extra tensors are masks: names_in_file has refused others.
  dtrain::load_safetensors(group, path, model,
                           {.rename = [&names](const std::string& name) { return names.at(name); }, .extra = true});
}

}  // namespace gpt2
