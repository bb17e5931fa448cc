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
#include "dtrain/ddp/checkpoint/safetensors_header.hpp"

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
/// as a whole. Blocking: the file system. @param sharding as safetensors_header @throws as AtomicFile,
/// safetensors_header, tensor_signatures, `access`
void write_checkpoint_file(const std::string& path, std::span<const NamedTensor> tensors, TensorAccess&& access = {},
                           WritingAttempt attempt = {}, std::string_view sharding = {});

/// Reads the tensors' values from `path`, where they have any order, and gives NamedBytes the file's length. Blocking:
/// the file system.
/// @param options null: the file has the program's tensors, and no others @returns whether each tensor was read;
/// nullopt if there is no file
/// @throws Error (protocol) if it is no checkpoint, is damaged or has other tensors: values are unchanged; (the
/// system's code). Where the folder is also missing, a warning in the log says so
std::optional<std::vector<std::int64_t>> read_checkpoint_file(const std::string& path,
                                                              std::span<const NamedTensor> tensors,
                                                              TensorAccess&& access = {},
                                                              const SafetensorsOptions* options = nullptr);

/// Reads the list of a file's tensors, by name, and checks that the file's length matches it. @returns nullopt if there
/// is no file @throws as read_checkpoint_file
std::optional<std::vector<FileTensor>> read_checkpoint_list(const std::string& path);

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <numeric>
#include <utility>

#include "dtrain/core/crypto.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/checkpoint/safetensors_file.hpp"
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

/// The fewest bytes that are inserted, removed or replaced between two names (Levenshtein 1966).
inline std::size_t name_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t k = 0; k < b.size(); ++k) {
      const std::size_t replaced = diagonal + (a[i] == b[k] ? 0 : 1);
      diagonal = row[k + 1];
      row[k + 1] = std::min({replaced, diagonal + 1, row[k] + 1});
    }
  }
  return row.back();
}

/// " (the nearest is 'fc1.weight')"; empty if no name is like it.
template <class Names>
std::string nearest_name(std::string_view name, const Names& names) {
  constexpr std::size_t most_bytes = 200;  // of a name, and 100 times as many names: a second at most
  std::string_view nearest;
  std::size_t least = most_bytes;
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 100 * most_bytes); ++i) {
    const std::string_view other = names[i];
    if (other.size() > most_bytes || name.size() > most_bytes) continue;
    const std::size_t distance = name_distance(name, other);
    if (distance >= least || 2 * distance > std::max(name.size(), other.size())) continue;
    nearest = other;
    least = distance;
  }
  return least == most_bytes ? "" : format_text(" (the nearest is {})", {in_quotes(nearest)});
}

/// The tensors of a file that a program's tensors take.
class Matching {
 public:
  /// @param options null: the file has the program's tensors, and no others
  Matching(const TensorFiles& files, std::vector<ParameterSignature> wanted, const SafetensorsOptions* options)
      : files_(files), options_(options), wanted_(std::move(wanted)) {
    for (const ParameterSignature& tensor : wanted_) {
      names_.push_back(options && options->rename ? options->rename(tensor.name) : tensor.name);
    }
  }

  /// @returns the place of each tensor; null: it keeps its value @throws Error (protocol)
  std::vector<const TensorFiles::Place*> places(std::span<const NamedTensor> tensors) const {
    if (options_ == nullptr) check_sharding();
    std::vector<const TensorFiles::Place*> places;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const TensorFiles::Place* const place = files_.find(names_[i]);
      if (place != nullptr) {
        check(wanted_[i], *place->tensor, tensors[i].bytes != nullptr);
      } else if (options_ == nullptr || !options_->missing) {
        refuse_missing(i);
      }
      places.push_back(place);
    }
    if (options_ == nullptr || !options_->extra) check_extra();
    return places;
  }

 private:
  const char* remedy() const noexcept {
    return options_ == nullptr ? "load it into what it was saved from, or name another file"
                               : "give the program such a tensor, or name another file";
  }

  void check_sharding() const {
    const auto is_id = [](std::string_view name) { return name == shard_id_tensor; };
    const bool wants = std::any_of(names_.begin(), names_.end(), is_id);
    if (wants == (files_.find(shard_id_tensor) != nullptr)) return;
    files_.refuse(wants ? "it was saved without a ShardedOptimizer; load it without one, or name another file"
                        : "it was saved with a ShardedOptimizer; load it with one, as the last argument of "
                          "load_checkpoint, or name another file");
  }

  void check(const ParameterSignature& wanted, const FileTensor& found, bool is_bytes) const {
    const bool is_float_here = is_float(wanted.dtype) && found.dtype && is_float(*found.dtype);
    const bool is_type = found.dtype == wanted.dtype || (is_float_here && options_ != nullptr && options_->convert);
    const bool is_shape = found.shape && (is_bytes ? found.shape->extents().size() == 1 : *found.shape == wanted.shape);
    if (is_type && is_shape && (!is_bytes || found.end - found.begin <= max_named_bytes)) return;
    if (is_type && is_shape) {
      files_.refuse(format_text("its tensor {} has {} bytes, and at most {} are read; name another file",
                                {in_quotes(found.name), found.end - found.begin, max_named_bytes}));
    }
    files_.refuse(format_text("its tensor {} is {} {}, the program's is {}; {}",
                              {in_quotes(found.name), found.dtype ? name(*found.dtype) : excerpt(found.type),
                               found.shape ? to_string(*found.shape) : "of more extents or elements than dtrain's",
                               is_bytes ? "u8 of one extent" : kind(wanted), remedy()}));
  }

  [[noreturn]] void refuse_missing(std::size_t i) const {
    std::vector<std::string_view> names;
    for (const TensorFiles::Place& place : files_.places()) {
      names.push_back(place.tensor->name);
    }
    const std::string& own = wanted_[i].name;
    files_.refuse(format_text(
        "it has no tensor {}{}{}; {}",
        {in_quotes(names_[i]), names_[i] == own ? "" : ", for " + in_quotes(own), nearest_name(names_[i], names),
         options_ == nullptr ? remedy() : "give rename(), or let tensors keep their values by missing = true"}));
  }

  void check_extra() const {
    std::vector<std::string_view> sorted(names_.begin(), names_.end());
    std::sort(sorted.begin(), sorted.end());
    for (const TensorFiles::Place& place : files_.places()) {
      const std::string& name = place.tensor->name;
      if (std::binary_search(sorted.begin(), sorted.end(), name)) continue;
      files_.refuse(format_text(
          "its tensor {} is none of the program's{}; {}",
          {in_quotes(name), nearest_name(name, sorted), options_ == nullptr ? remedy() : "allow it by extra = true"}));
    }
  }

  const TensorFiles& files_;
  const SafetensorsOptions* options_;
  std::vector<ParameterSignature> wanted_;
  std::vector<std::string> names_;  ///< in the file
};

/// Reads a tensor of another floating-point type, at most 16 MiB at a time.
inline void read_converted(const TensorFiles::Place& from, std::byte* to, DType to_type) {
  constexpr std::size_t most_bytes = std::size_t{16} << 20;
  const DType type = *from.tensor->dtype;
  const std::size_t most = most_bytes / size_bytes(type);
  std::uint64_t left = from.tensor->shape->element_count();
  std::vector<std::byte> piece(std::min<std::uint64_t>(left, most) * size_bytes(type));
  std::vector<float> floats(std::min<std::uint64_t>(left, most));
  for (std::uint64_t offset = from.tensor->begin; left != 0;) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(left, most));
    const auto bytes = std::span(piece).first(count * size_bytes(type));
    from.file->read_bytes(offset, bytes);
    auto* const single = reinterpret_cast<std::byte*>(floats.data());
    if (type == DType::f64) {
      std::copy_n(reinterpret_cast<const double*>(piece.data()), count, floats.data());
    } else {
      kernels::convert(type, piece.data(), DType::f32, single, count);
    }
    if (to_type == DType::f64) {
      std::copy_n(floats.data(), count, reinterpret_cast<double*>(to));
    } else {
      kernels::convert(DType::f32, single, to_type, to, count);
    }
    offset += bytes.size();
    to += count * size_bytes(to_type);
    left -= count;
  }
}

/// As read_checkpoint_file, for a file that no other process replaces.
inline std::optional<std::vector<std::int64_t>> read_tensors(const std::string& path,
                                                             std::span<const NamedTensor> tensors, TensorAccess& access,
                                                             const SafetensorsOptions* options) {
  std::vector<ParameterSignature> wanted = tensor_signatures(tensors, access.takes_device_memory());
  const TensorFiles files(path);
  if (!files) return std::nullopt;
  const std::vector<const TensorFiles::Place*> places = Matching(files, std::move(wanted), options).places(tensors);
  files.check_digests();
  std::vector<std::string> contents(tensors.size());  // allocated before a value is written
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].bytes != nullptr && places[i] != nullptr) {
      contents[i].resize(places[i]->tensor->shape->element_count());
    }
  }
  std::vector<std::int64_t> is_read;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    is_read.push_back(places[i] != nullptr ? 1 : 0);
    if (places[i] == nullptr) continue;
    if (tensors[i].bytes != nullptr) *tensors[i].bytes = std::move(contents[i]);
    const TensorView value = tensors[i].present();
    const std::span<std::byte> place = access.place(value);
    if (places[i]->tensor->dtype == value.dtype) {
      places[i]->file->read_bytes(places[i]->tensor->begin, place);
    } else {
      read_converted(*places[i], place.data(), value.dtype);
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
  const std::vector<ParameterSignature> list = tensor_signatures(tensors, access.takes_device_memory());
  const std::vector<std::size_t> order = safetensors_order(list);
  const std::string header = safetensors_header(list, order, sharding);
  append(std::as_bytes(std::span(header)));
  for (const std::size_t i : order) {
    append(access.fetch(tensors[i].present()));
  }
  const std::string digits = hex(digest.digest());
  file.overwrite(digest_position, std::as_bytes(std::span(digits)));
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
  if (!is_read) detail::warn_of_missing_folder(path);
  return is_read;
}

DTRAIN_DEFINED std::optional<std::vector<FileTensor>> read_checkpoint_list(const std::string& path) {
  return detail::read_past_stale([&]() -> std::optional<std::vector<FileTensor>> {
    const TensorFiles files(path);
    if (!files) detail::warn_of_missing_folder(path);
    if (!files) return std::nullopt;
    std::vector<FileTensor> list;
    for (const TensorFiles::Place& place : files.places()) {
      list.push_back(*place.tensor);
    }
    return list;
  });
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
