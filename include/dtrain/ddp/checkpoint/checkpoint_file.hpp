#pragma once
/// @file
/// Checkpoint file: one process's writes and reads of a program's tensors, in the format safetensors.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/checkpoint/atomic_file.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// How load_safetensors() finds the program's tensors in files of other programs.
/// @ingroup checkpoints
struct SafetensorsOptions {
  /// The name in the file of a tensor of the program: `[](const std::string& name) { return "model." + name; }`. Null:
  /// the same name. Called on rank 0.
  std::function<std::string(const std::string& name)> rename{};
  bool missing = false;  ///< whether tensors that the file does not have may keep their values
  bool extra = false;    ///< whether the file may have tensors that no tensor of the program takes
  bool convert = true;   ///< whether elements of f16, bf16, f32 and f64 may be converted to the program's type
};

/// The tensor that only the checkpoint of a ShardedOptimizer has.
inline constexpr std::string_view shard_id_tensor = "dtrain.optimizer.shards.id";

/// Writes the tensors' present values to `path`. If the call is interrupted, `path` has the new or the former content
/// as a whole. Blocking: the file system. @param sharding value of sharding_key; empty: none @throws as AtomicFile,
/// safetensors_header, tensor_signatures, `access`
void write_checkpoint_file(const std::string& path, std::span<const NamedTensor> tensors, TensorAccess&& access = {},
                           WritingAttempt attempt = {}, std::string_view sharding = {});

/// Reads the tensors' values from `path`, where they have any order, and gives NamedBytes the file's length. Blocking:
/// the file system.
/// @param options null: the file has the program's tensors, and no others @returns whether each tensor was read;
/// nullopt if there is no file, which is an error with options
/// @throws Error (protocol) if it is no checkpoint, is damaged or has other tensors: values are unchanged; (the
/// system's code). Where the folder is also missing, a warning in the log says so
std::optional<std::vector<std::int64_t>> read_checkpoint_file(const std::string& path,
                                                              std::span<const NamedTensor> tensors,
                                                              TensorAccess&& access = {},
                                                              const SafetensorsOptions* options = nullptr);

/// A tensor of a checkpoint or another safetensors file.
/// @ingroup checkpoints
struct CheckpointTensor {
  std::string name;
  std::optional<DType> dtype;  ///< nullopt: a type that dtrain does not have
  std::optional<Shape> shape;  ///< nullopt: more extents or elements than a Shape has
};

/// The tensors in a checkpoint or another safetensors file, or in the files of an index, by name: for a program that
/// makes its model as large as the saved one. Blocking: the file system.
/// @throws Error (the system's code) if there is no such file; (protocol) for a file that is none, or damaged
/// @ingroup checkpoints
std::vector<CheckpointTensor> checkpoint_tensors(const std::string& path);

/// The names of checkpoint_tensors(). Blocking: the file system.
/// @throws as checkpoint_tensors
/// @ingroup checkpoints
std::vector<std::string> safetensors_names(const std::string& path);

struct FileTensor;

/// Reads the list of a file's tensors, by name, and checks that the file's length matches it. @returns nullopt if there
/// is no file @throws as read_checkpoint_file
std::optional<std::vector<FileTensor>> read_checkpoint_list(const std::string& path, bool takes_index = false);

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <set>
#include <utility>

#include "dtrain/core/crypto.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/checkpoint/safetensors_file.hpp"
#include "dtrain/ddp/checkpoint/safetensors_header.hpp"
#include "dtrain/kernels/conversion.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// Without a folder, `path` is not the name of a first start: a later save would fail.
inline void warn_of_missing_folder(const std::string& path) {
  const std::string file = behind_link(path);
  const std::string folder = file.substr(0, file.rfind('/') + 1);
  if (folder.empty() || ::access(folder.c_str(), F_OK) == 0 || errno != ENOENT) return;
  log(LogLevel::warning, format_text("there is no checkpoint {} to load, nor its folder {}; correct the name, or make "
                                     "the folder before the checkpoint is saved",
                                     {sanitize(path), sanitize(folder)}));
}

[[noreturn]] inline void refuse_missing_file(const std::string& path) {
  throw_posix(ENOENT, "reading the weights {} failed", {sanitize(path)}, "correct the name, or copy the file there");
}

/// " (the nearest is 'fc1.weight')", the name with the longest equal beginning and end, since prefixes often differ;
/// empty if none is much like it.
template <class Names>
std::string similar_name(std::string_view name, const Names& names) {
  std::string_view nearest;
  std::size_t most = name.size() / 2;
  for (const std::string_view other : names) {
    const auto begin = std::mismatch(name.begin(), name.end(), other.begin(), other.end()).first - name.begin();
    const auto end = std::mismatch(name.rbegin(), name.rend(), other.rbegin(), other.rend()).first - name.rbegin();
    const auto equal = static_cast<std::size_t>(begin + end);
    if (equal > most) nearest = other;
    most = std::max(most, equal);
  }
  return nearest.empty() ? "" : format_text(" (the nearest is {})", {in_quotes(nearest)});
}

/// The tensors as a file has them, without places. @throws as tensor_signatures, and Error (invalid_argument) for a
/// file_type that is unknown, or whose elements are no u8 of that size
inline std::vector<FileTensor> tensors_for_file(std::span<const NamedTensor> tensors, bool on_devices,
                                                std::size_t most_name_bytes = max_parameter_name_bytes) {
  std::vector<FileTensor> all = file_tensors(tensor_signatures(tensors, on_devices, most_name_bytes));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].file_type.empty()) continue;
    all[i].type = tensors[i].file_type;
    all[i].dtype.reset();
    const auto& extents = all[i].shape->extents();
    const auto size = element_bytes(tensors[i].file_type);
    if (!size || tensors[i].value.dtype != DType::u8 || extents.empty() ||
        static_cast<std::size_t>(extents[extents.size() - 1]) != *size) {
      throw_error(Errc::invalid_argument,
                  "tensor {} of a checkpoint is {} {}, and its file_type is {}; give it as u8 whose last extent is the "
                  "bytes of an element of BOOL, I8, I16, U16 or C64",
                  {in_quotes(tensors[i].name), name(tensors[i].value.dtype), to_string(tensors[i].value.shape),
                   in_quotes(tensors[i].file_type)});
    }
    all[i].shape = Shape(std::vector<std::int64_t>(extents.begin(), extents.end() - 1));
  }
  return all;
}

/// Metadata with the further names of shared tensors, and the sharding unless it is empty.
inline FileMetadata metadata_of(std::span<const NamedTensor> tensors, std::string_view sharding) {
  FileMetadata metadata;
  if (!sharding.empty()) metadata.emplace_back(sharding_key, sharding);
  for (const NamedTensor& tensor : tensors) {
    for (const std::string& other : tensor.other_names) {
      if (other != "format" && other != digest_key && other != sharding_key) metadata.emplace_back(other, tensor.name);
    }
  }
  return metadata;
}

/// @throws Error (protocol) for a tensor of the file that the program's cannot take
inline void check_tensor(const TensorFiles& files, const FileTensor& found, const FileTensor& wanted, bool is_bytes,
                         const SafetensorsOptions* options) {
  const bool converts = options != nullptr && options->convert && found.dtype && is_float(*found.dtype);
  const bool is_type = found.type == wanted.type || (converts && wanted.dtype && is_float(*wanted.dtype));
  const bool is_shape = found.shape && (is_bytes ? found.shape->extents().size() == 1 : *found.shape == *wanted.shape);
  if (!is_type || !is_shape) {
    files.refuse(format_text(
        "its tensor {} is {} {}, the program's is {}; load it into what it was saved from, or name another file",
        {in_quotes(found.name), found.dtype ? name(*found.dtype) : excerpt(found.type),
         found.shape ? to_string(*found.shape) : "of more extents or elements than dtrain takes",
         is_bytes
             ? "u8 with one extent"
             : format_text("{} {}", {wanted.dtype ? name(*wanted.dtype) : wanted.type, to_string(*wanted.shape)})}));
  }
  if (!is_bytes || found.end - found.begin <= max_named_bytes) return;
  files.refuse(format_text("its tensor {} has {} bytes, and at most {} are read; name another file",
                           {in_quotes(found.name), found.end - found.begin, max_named_bytes}));
}

/// @param options null: the file has the program's tensors, and no others
/// @returns the file's tensor for each of the program's; none: it keeps its value @throws Error (protocol)
inline std::vector<TensorFiles::Found> find_tensors(const TensorFiles& files, std::span<const NamedTensor> tensors,
                                                    std::span<const FileTensor> wanted,
                                                    const SafetensorsOptions* options) {
  const auto is_id = [](const FileTensor& tensor) { return tensor.name == shard_id_tensor; };
  const bool is_sharded = files.tensors().contains(shard_id_tensor);
  if (options == nullptr && is_sharded != std::any_of(wanted.begin(), wanted.end(), is_id)) {
    files.refuse(is_sharded ? "it was saved with a ShardedOptimizer; load it with one, as the last argument of "
                              "load_checkpoint, or name another file"
                            : "it was saved without a ShardedOptimizer; load it without one, or name another file");
  }
  std::vector<TensorFiles::Found> all;
  std::set<std::string, std::less<>> names;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::string& own = wanted[i].name;
    const auto name_of = [&](const std::string& each) {
      return options != nullptr && options->rename ? options->rename(each) : each;
    };
    const std::string name = name_of(own);
    names.insert(name);
    auto found = files.tensors().find(name);
    for (const std::string& other : tensors[i].other_names) {
      const std::string& other_name = *names.insert(name_of(other)).first;
      if (found == files.tensors().end()) found = files.tensors().find(other_name);
    }
    all.push_back(found == files.tensors().end() ? TensorFiles::Found{} : found->second);
    if (all.back().tensor != nullptr) {
      check_tensor(files, *all.back().tensor, wanted[i], tensors[i].bytes != nullptr, options);
    } else if (options == nullptr || !options->missing) {
      std::vector<std::string_view> present;
      for (const auto& each : files.tensors()) {
        present.push_back(each.first);
      }
      files.refuse(format_text(
          "it has no tensor {}{}{}; {}",
          {in_quotes(name), name == own ? "" : " for the program's " + in_quotes(own), similar_name(name, present),
           options == nullptr ? "load it into what it was saved from, or name another file"
                              : "rename it, or allow it by missing = true"}));
    }
  }
  for (const auto& [name, found] : files.tensors()) {
    if (names.contains(name) || (options != nullptr && options->extra)) continue;
    files.refuse(format_text("its tensor {} is none of the program's{}; {}",
                             {in_quotes(name), similar_name(name, names),
                              options == nullptr ? "load it into what it was saved from, or name another file"
                                                 : "allow it by extra = true"}));
  }
  return all;
}

/// Rounds to odd: to the one of the two floats around `value` whose last bit is 1, if `value` itself is no float.
/// Rounding that float to 16 bits gives the nearest to `value`, which rounding the nearest float may miss (Boldo and
/// Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
inline float rounded_to_odd(double value) noexcept {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value) return nearest;
  const std::uint32_t is_beyond = std::abs(static_cast<double>(nearest)) > std::abs(value) ? 1 : 0;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(nearest) - is_beyond) | 1U);  // a NaN stays one
}

/// Reads a tensor of another floating-point type, at most 16 MiB at a time.
inline void read_converted(const TensorFiles::Found& from, std::byte* to, DType to_type) {
  constexpr std::size_t most_bytes = std::size_t{16} << 20;
  const DType type = *from.tensor->dtype;
  const std::size_t size = size_bytes(type);
  std::vector<std::byte> piece(std::min<std::uint64_t>(from.tensor->end - from.tensor->begin, most_bytes));
  std::vector<float> floats(piece.size() / size);
  auto* const as_floats = reinterpret_cast<std::byte*>(floats.data());
  for (std::uint64_t at = from.tensor->begin; at < from.tensor->end; at += piece.size()) {
    piece.resize(std::min<std::uint64_t>(from.tensor->end - at, most_bytes));
    const std::size_t count = piece.size() / size;
    from.file->read_bytes(at, piece);
    if (type == DType::f64) {
      const auto* const doubles = reinterpret_cast<const double*>(piece.data());
      const bool is_rounded_again = size_bytes(to_type) < sizeof(float);
      std::transform(doubles, doubles + count, floats.data(), [is_rounded_again](double value) {
        return is_rounded_again ? rounded_to_odd(value) : static_cast<float>(value);
      });
    } else {
      kernels::convert(type, piece.data(), DType::f32, as_floats, count);
    }
    if (to_type == DType::f64) {
      std::copy_n(floats.data(), count, reinterpret_cast<double*>(to));
    } else {
      kernels::convert(DType::f32, as_floats, to_type, to, count);
    }
    to += count * size_bytes(to_type);
  }
}

/// As read_checkpoint_file, for a file that no other process replaces.
inline std::optional<std::vector<std::int64_t>> read_tensors(const std::string& path,
                                                             std::span<const NamedTensor> tensors, TensorAccess& access,
                                                             const SafetensorsOptions* options) {
  const std::vector<FileTensor> wanted = tensors_for_file(tensors, access.takes_device_memory());
  const TensorFiles files(path, options != nullptr);
  if (!files) return std::nullopt;
  const std::vector<TensorFiles::Found> all = find_tensors(files, tensors, wanted, options);
  files.check_digests();
  std::vector<std::string> contents(tensors.size());  // allocated before a value is written
  std::vector<std::int64_t> is_read;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    is_read.push_back(all[i].tensor != nullptr ? 1 : 0);
    if (is_read[i] != 0 && tensors[i].bytes != nullptr) contents[i].resize(all[i].tensor->shape->element_count());
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (is_read[i] == 0) continue;
    if (tensors[i].bytes != nullptr) *tensors[i].bytes = std::move(contents[i]);
    const TensorView value = tensors[i].present();
    const std::span<std::byte> place = access.place(value);
    if (all[i].tensor->type == wanted[i].type) {
      all[i].file->read_bytes(all[i].tensor->begin, place);
    } else {
      read_converted(all[i], place.data(), value.dtype);
    }
    access.put(value);
  }
  return is_read;
}

}  // namespace detail

/// Writes the tensors' present values to `file`, which the caller commits. Blocking: the file system.
/// @throws Error (the system's code) naming the file; as write_checkpoint_file
inline void write_checkpoint(AtomicFile& file, std::span<const NamedTensor> tensors, TensorAccess&& access = {},
                             std::string_view sharding = {}) {
  Sha256 digest;
  const auto append = [&](std::span<const std::byte> bytes) {
    digest.update(bytes);
    file.write(bytes);
  };
  // A shard file has longer names: "dtrain.optimizer.state.PARAMETER.ARRAY".
  const std::size_t most = max_parameter_name_bytes + (sharding.empty() ? 0 : 256);
  const std::vector<FileTensor> list = detail::tensors_for_file(tensors, access.takes_device_memory(), most);
  const std::vector<std::size_t> order = safetensors_order(list);
  const std::string header = safetensors_header(list, order, detail::metadata_of(tensors, sharding));
  append(std::as_bytes(std::span(header)));
  for (const std::size_t i : order) {
    append(access.fetch(tensors[i].present()));
  }
  const std::string digits = hex(digest.digest());
  file.write(std::as_bytes(std::span(digits)), digest_position);
}

DTRAIN_DEFINED void write_checkpoint_file(const std::string& path, std::span<const NamedTensor> tensors,
                                          TensorAccess&& access, WritingAttempt attempt, std::string_view sharding) {
  AtomicFile file(path, std::move(attempt));
  write_checkpoint(file, tensors, std::move(access), sharding);
  file.commit();
}

DTRAIN_DEFINED std::optional<std::vector<std::int64_t>> read_checkpoint_file(const std::string& path,
                                                                             std::span<const NamedTensor> tensors,
                                                                             TensorAccess&& access,
                                                                             const SafetensorsOptions* options) {
  auto is_read = detail::read_past_stale([&] { return detail::read_tensors(path, tensors, access, options); });
  if (!is_read && options != nullptr) detail::refuse_missing_file(path);
  if (!is_read) detail::warn_of_missing_folder(path);
  return is_read;
}

DTRAIN_DEFINED std::vector<CheckpointTensor> checkpoint_tensors(const std::string& path) {
  const auto list = read_checkpoint_list(path, true);
  if (!list) detail::refuse_missing_file(path);
  std::vector<CheckpointTensor> tensors;
  for (const FileTensor& tensor : *list) {
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  return tensors;
}

DTRAIN_DEFINED std::vector<std::string> safetensors_names(const std::string& path) {
  std::vector<std::string> names;
  for (CheckpointTensor& tensor : checkpoint_tensors(path)) {
    names.push_back(std::move(tensor.name));
  }
  return names;
}

DTRAIN_DEFINED std::optional<std::vector<FileTensor>> read_checkpoint_list(const std::string& path, bool takes_index) {
  return detail::read_past_stale([&]() -> std::optional<std::vector<FileTensor>> {
    const TensorFiles files(path, takes_index);
    if (!files && !takes_index) detail::warn_of_missing_folder(path);
    if (!files) return std::nullopt;
    std::vector<FileTensor> list;
    for (const auto& [name, found] : files.tensors()) {
      list.push_back(*found.tensor);
    }
    return list;
  });
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
