#pragma once
/// @file
/// Kept state: the tensors that make up the training state of an elastic job's worker, their digest, and the copies
/// that undo an unfinished step. ElasticWorker owns it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"

namespace DTRAIN_NAMESPACE::elastic {

/// FNV-1a over 8 bytes of the content at a time, continued from `hash`. Blocking: at the speed of memory.
/// Source: Fowler, Noll, Vo, draft-eastlake-fnv; a word in place of a byte, and its upper half folded into the lower.
std::uint64_t digest_of(const TensorView& tensor, std::uint64_t hash);
inline constexpr std::uint64_t digest_start = 0xcbf29ce484222325u;

/// Lifetime: the tensors' memory outlives it. Threads: one.
class KeptState {
 public:
  /// @throws Error (unsupported) for device memory and NamedBytes, (invalid_argument) for a tensor without memory
  void keep(std::vector<ddp::NamedTensor> tensors, bool copies);

  const std::vector<ddp::NamedTensor>& tensors() const noexcept { return tensors_; }

  /// A hash of names, shapes and types, for comparison between workers.
  std::string signature() const;

  /// digest_of() all tensors but the copied ones, which the ranks' forward passes may have written differently.
  std::uint64_t digest() const;

  /// The state is whole: the tensors of keep_copy are copied.
  void commit() {
    if (!copies_.empty()) {
      copy();
    }
  }
  /// A step was given up: the tensors of keep_copy get the values of the last commit.
  void restore();

 private:
  struct Copy {
    std::size_t tensor = 0;
    std::vector<std::byte> bytes;
  };
  bool is_copied(std::size_t tensor) const noexcept;

  void copy();

  std::vector<ddp::NamedTensor> tensors_;
  std::vector<Copy> copies_;
};

}  // namespace DTRAIN_NAMESPACE::elastic

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::elastic {

namespace detail {

inline std::uint64_t hash_bytes(std::uint64_t hash, const std::byte* bytes, std::size_t count) {
  constexpr std::uint64_t prime = 0x100000001b3u;
  for (; count >= sizeof(std::uint64_t); bytes += sizeof(std::uint64_t), count -= sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes, sizeof(word));
    hash = (hash ^ word) * prime;
    hash ^= hash >> 32;
  }
  for (; count > 0; ++bytes, --count) {
    hash = (hash ^ static_cast<std::uint64_t>(*bytes)) * prime;
  }
  return hash;
}

}  // namespace detail

DTRAIN_DEFINED std::uint64_t digest_of(const TensorView& tensor, std::uint64_t hash) {
  return detail::hash_bytes(hash, tensor.data, tensor.bytes());
}

DTRAIN_DEFINED void KeptState::keep(std::vector<ddp::NamedTensor> tensors, bool copies) {
  static_cast<void>(ddp::tensor_signatures(tensors));
  for (ddp::NamedTensor& each : tensors) {
    if (each.bytes != nullptr) {
      throw_error(Errc::unsupported,
                  "NamedBytes '{}' are not kept in an elastic job, because their number may change; keep tensors",
                  {each.name});
    }
    if (copies) {
      copies_.push_back({tensors_.size(), std::vector<std::byte>(each.value.bytes())});
    }
    tensors_.push_back(std::move(each));
  }
  copy();
}

DTRAIN_DEFINED std::string KeptState::signature() const {
  std::uint64_t hash = digest_start;
  const auto add = [&hash](const void* bytes, std::size_t count) {
    hash = detail::hash_bytes(hash, static_cast<const std::byte*>(bytes), count);
  };
  for (const ddp::NamedTensor& each : tensors_) {
    add(each.name.data(), each.name.size());
    const auto dtype = static_cast<std::uint64_t>(each.value.dtype);
    add(&dtype, sizeof(dtype));
    for (const std::int64_t extent : each.value.shape.extents()) {
      const auto wide = static_cast<std::uint64_t>(extent);
      add(&wide, sizeof(wide));
    }
  }
  return format_text("{} tensors, {}", {tensors_.size(), hash});
}

DTRAIN_DEFINED std::uint64_t KeptState::digest() const {
  std::uint64_t hash = digest_start;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    hash = is_copied(i) ? hash : digest_of(tensors_[i].value, hash);
  }
  return hash;
}

DTRAIN_DEFINED bool KeptState::is_copied(std::size_t tensor) const noexcept {
  return std::any_of(copies_.begin(), copies_.end(), [tensor](const Copy& each) { return each.tensor == tensor; });
}

DTRAIN_DEFINED void KeptState::copy() {
  for (Copy& each : copies_) {
    const TensorView& value = tensors_[each.tensor].value;
    std::copy_n(value.data, value.bytes(), each.bytes.data());
  }
}

DTRAIN_DEFINED void KeptState::restore() {
  for (const Copy& each : copies_) {
    std::copy(each.bytes.begin(), each.bytes.end(), tensors_[each.tensor].value.data);
  }
}

}  // namespace DTRAIN_NAMESPACE::elastic

#endif  // DTRAIN_DEFINITIONS
