#pragma once
/// @file
/// KeptState of an ElasticWorker: tensors of the training state, their digest, and copies that undo an unfinished step.
/// LibraryState: a library's tensors.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/memory_ranges.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"

namespace DTRAIN_NAMESPACE::elastic {

/// Lists tensors of a library that may give them other memory, with the present addresses. Each call lists the same
/// names, shapes and types.
using TensorSource = std::function<std::vector<ddp::NamedTensor>()>;

/// Tensors of a library's objects in the kept state (a LibTorch module and its optimizer).
struct LibraryState {
  TensorSource written_in_commit;   ///< the tensors of Elastic::keep
  TensorSource written_in_forward;  ///< the tensors of Elastic::keep_copy
};

/// Lifetime: the tensors' memory outlives it, and so does what a source refers to. Threads: one.
class KeptState {
 public:
  /// @throws Error (unsupported) for device memory and NamedBytes, (invalid_argument) for a tensor without memory
  void keep(std::vector<ddp::NamedTensor> tensors, bool copies);
  /// @throws as above
  void keep(TensorSource source, bool copies);
  void keep(const LibraryState& state, bool copies) {
    keep(state.written_in_commit, copies);
    keep(state.written_in_forward, true);
  }

  /// Takes the present addresses from the sources. Before tensors(), digest() and restore() if the program has run
  /// since. @throws Error (invalid_argument) if a source lists other tensors than before
  void locate() { locate(false); }

  const std::vector<ddp::NamedTensor>& tensors() const noexcept { return tensors_; }

  /// A hash of names, shapes and types, for comparison between workers.
  std::string signature() const;

  /// A digest of all tensors but the copied ones, which the ranks' forward passes may have written differently.
  std::uint64_t digest() const;

  /// The state is whole: the tensors of keep_copy are copied.
  void commit() {
    if (has_copies_) copy();
  }
  /// A step was given up: the tensors of keep_copy get the values of the last commit.
  void restore();

  /// Views of all tensors, at their present addresses.
  std::vector<TensorView> values() const;
  /// Memory of the tensors of keep_copy.
  DTRAIN_ON_USE MemoryRanges copied_memory() const;

  /// The program loads the state in each attempt, and writes it outside of commits: the ranks' states may differ.
  void expect_differences() noexcept { may_differ_ = true; }
  bool may_differ() const noexcept { return may_differ_; }

 private:
  struct Source {
    TensorSource list;
    std::size_t first = 0;  ///< the first one in tensors_
    std::size_t count = 0;
    bool copies = false;
  };
  /// @param copied the sources alone whose tensors are copied
  void locate(bool copied);
  void copy();

  std::vector<ddp::NamedTensor> tensors_;
  std::vector<std::vector<std::byte>> copies_;  ///< copy of each tensor; empty: it is not copied
  bool has_copies_ = false;
  std::vector<Source> sources_;
  bool may_differ_ = false;
};

}  // namespace DTRAIN_NAMESPACE::elastic

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/kernels/digest.hpp"

namespace DTRAIN_NAMESPACE::elastic {

DTRAIN_DEFINED void KeptState::keep(std::vector<ddp::NamedTensor> tensors, bool copies) {
  for (const ddp::NamedTensor& each : tensors) {
    if (each.value.device.kind != DeviceKind::host) {
      throw_error(Errc::unsupported,
                  "the tensor {} that keep() was given is on {}, and an elastic job keeps host memory: keep a copy on "
                  "the host, write it in commit(), and copy it to the device where the function of train() begins",
                  {in_quotes(each.name), to_string(each.value.device)});
    }
    if (each.bytes != nullptr) {
      throw_error(Errc::unsupported,
                  "NamedBytes '{}' are not kept in an elastic job, because their number may change; keep tensors",
                  {each.name});
    }
  }
  static_cast<void>(ddp::tensor_signatures(tensors));
  has_copies_ = has_copies_ || copies;
  for (ddp::NamedTensor& each : tensors) {
    copies_.emplace_back(copies ? each.value.bytes() : 0);
    tensors_.push_back(std::move(each));
  }
  commit();
}

DTRAIN_DEFINED void KeptState::keep(TensorSource source, bool copies) {
  std::vector<ddp::NamedTensor> tensors = source();
  const std::size_t first = tensors_.size();
  const std::size_t count = tensors.size();
  keep(std::move(tensors), copies);  // keep() may reject them
  sources_.push_back({std::move(source), first, count, copies});
}

DTRAIN_DEFINED void KeptState::locate(bool copied) {
  for (const Source& source : sources_) {
    if (copied && !source.copies) continue;
    const std::vector<ddp::NamedTensor> present = source.list();
    if (present.size() != source.count) {
      throw_error(Errc::invalid_argument,
                  "a library's object that keep() was given has {} tensors now, and had {}; change it before keep()",
                  {present.size(), source.count});
    }
    for (std::size_t i = 0; i < present.size(); ++i) {
      ddp::NamedTensor& kept = tensors_[source.first + i];
      const TensorView& now = present[i].value;
      if (present[i].name != kept.name || now.shape != kept.value.shape || now.dtype != kept.value.dtype ||
          now.device != kept.value.device) {
        throw_error(Errc::invalid_argument,
                    "the kept tensor {} is now {} {} {}, and was {} {} when keep() was called; change it before keep()",
                    {in_quotes(kept.name), in_quotes(present[i].name), to_string(now.shape), name(now.dtype),
                     to_string(kept.value.shape), name(kept.value.dtype)});
      }
      kept.value.data = now.data;
    }
  }
}

DTRAIN_DEFINED std::string KeptState::signature() const {
  std::uint64_t hash = kernels::digest_start;
  const auto add = [&hash](const void* bytes, std::size_t count) {
    hash = kernels::digest(static_cast<const std::byte*>(bytes), count, hash);
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
  std::uint64_t hash = kernels::digest_start;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const TensorView& value = tensors_[i].value;
    hash = copies_[i].empty() ? kernels::digest(value.data, value.bytes(), hash) : hash;
  }
  return hash;
}

DTRAIN_DEFINED std::vector<TensorView> KeptState::values() const {
  std::vector<TensorView> values;
  for (const ddp::NamedTensor& each : tensors_) {
    values.push_back(each.value);
  }
  return values;
}

DTRAIN_ON_USE MemoryRanges KeptState::copied_memory() const {
  std::vector<TensorView> values;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!copies_[i].empty()) values.push_back(tensors_[i].value);
  }
  return MemoryRanges(values);
}

DTRAIN_DEFINED void KeptState::copy() {
  locate(true);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    std::copy_n(tensors_[i].value.data, copies_[i].size(), copies_[i].data());
  }
}

DTRAIN_DEFINED void KeptState::restore() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    std::copy(copies_[i].begin(), copies_[i].end(), tensors_[i].value.data);
  }
}

}  // namespace DTRAIN_NAMESPACE::elastic

#endif  // DTRAIN_DEFINITIONS
