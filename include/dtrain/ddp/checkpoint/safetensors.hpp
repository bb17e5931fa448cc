#pragma once
/// @file
/// save_safetensors(), load_safetensors(): weights that other programs read, and weights of theirs.
/// safetensors_names(): what such a file has.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/checkpoint/checkpoint.hpp"
#include "dtrain/ddp/checkpoint/checkpoint_file.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/model.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The names of the tensors in a safetensors file, or in the files of an index, sorted. Blocking: the file system.
/// @throws Error (the system's code) if there is no such file; (protocol) for a file that is none, or damaged
/// @ingroup checkpoints
std::vector<std::string> safetensors_names(const std::string& path);

namespace detail {

/// As read_checkpoint_file. @throws Error (ENOENT) if there is no file
std::vector<std::int64_t> read_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                                           TensorAccess&& access, const SafetensorsOptions& options);

template <Model M>
std::vector<NamedTensor> values_of(M& model) {
  std::vector<NamedTensor> values;
  for (const Parameter& parameter : model.parameters()) {
    values.push_back({parameter.name, parameter.value});
  }
  return values;
}

}  // namespace detail

/// Writes the weights alone to a file for other programs, as save_checkpoint of the same tensors, on whose names and
/// types these programs depend: Python reads it by safetensors.torch.load_file(path). Not all of them have f64 or 8-bit
/// floats. Collective, blocking, atomic, and @throws as save_checkpoint.
/// @ingroup checkpoints
template <class Group>
void save_safetensors(const Group& group, const std::string& path, std::span<const NamedTensor> tensors) {
  save_checkpoint(group, path, tensors);
}

/// The same for a model's parameters, by their names.
/// @ingroup checkpoints
template <class Group, Model M>
void save_safetensors(const Group& group, const std::string& path, M& model) {
  save_checkpoint(group, path, detail::values_of(model));
}

/// Every rank's `tensors` get the values of rank 0's file at `path`, which any program may have written: a safetensors
/// file, or an index of several (model.safetensors.index.json) that lie beside it. Only rank 0 needs access to it, and
/// reads it into its tensors one after the other; conversions take 32 MiB more. Shapes are equal: nothing is
/// transposed. Call it before or after wrapping the model; construct a ShardedOptimizer after it, since one of a 16-bit
/// model has f32 weights of its own. Collective, blocking: as load_checkpoint.
/// @param options of rank 0 count: other names, tensors that either side has alone, conversions of floats
/// @throws Error on every rank, with the same sentence, before a value changes: (ENOENT) if rank 0 has no such file;
/// (protocol) for a file that is damaged or none, or if a name, shape or type is not the program's; as load_checkpoint
/// @ingroup checkpoints
template <class Group>
void load_safetensors(const Group& group, const std::string& path, std::span<const NamedTensor> tensors,
                      const SafetensorsOptions& options = {}) {
  detail::agree_on_tensors_blocking(group, tensors);
  std::vector<std::int64_t> is_read(tensors.size());
  static_cast<void>(group::handle_of(group)->on_rank_0("rank 0", "reading the weights " + sanitize(path), [&] {
    is_read = detail::read_safetensors(path, tensors, tensor_access(group), options);
    return true;
  }));
  if (is_read.empty()) return;
  group.broadcast(is_read, 0);
  std::vector<NamedTensor> shared;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (is_read[i] != 0) shared.push_back(tensors[i]);
  }
  detail::share_values_blocking(group, shared);
}

/// The same for a model's parameters, by their names.
/// @ingroup checkpoints
template <class Group, Model M>
void load_safetensors(const Group& group, const std::string& path, M& model, const SafetensorsOptions& options = {}) {
  load_safetensors(group, path, detail::values_of(model), options);
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::load_safetensors;
using ddp::safetensors_names;
using ddp::SafetensorsOptions;
using ddp::save_safetensors;
}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <cerrno>
#include <optional>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED std::vector<std::string> safetensors_names(const std::string& path) {
  const std::optional<std::vector<FileTensor>> list = read_checkpoint_list(path);
  if (!list) throw_posix(ENOENT, "reading the weights {} failed", {sanitize(path)});
  std::vector<std::string> names;
  for (const FileTensor& tensor : *list) {
    names.push_back(tensor.name);
  }
  return names;
}

DTRAIN_DEFINED std::vector<std::int64_t> detail::read_safetensors(const std::string& path,
                                                                  std::span<const NamedTensor> tensors,
                                                                  TensorAccess&& access,
                                                                  const SafetensorsOptions& options) {
  std::optional<std::vector<std::int64_t>> is_read = read_checkpoint_file(path, tensors, std::move(access), &options);
  if (!is_read) throw_posix(ENOENT, "reading the weights {} failed", {sanitize(path)});
  return std::move(*is_read);
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
