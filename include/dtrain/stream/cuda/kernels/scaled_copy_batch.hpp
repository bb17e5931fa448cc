#pragma once
/// @file
/// ScaledCopyBatch: many copies within a device that convert and scale, enqueued together.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_CUDA

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/kernels/scale_kernel.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::stream::cuda {

/// Collects copies of one pair of element types, then enqueues them, 128 arrays a launch. The copies are unordered: no
/// copy may read or write what another one writes; a copy onto itself is allowed. Allocates nothing for as many copies
/// as were reserved. Threads: one at a time.
class ScaledCopyBatch {
 public:
  /// Most elements of one entry; longer copies are cut.
  static constexpr std::size_t max_entry_elements = std::size_t{1} << 31U;

  /// Precondition of add(): load(from, to, stream).
  ScaledCopyBatch(DType from, DType to)
      : kernel_(ScaleKernel::find(from, to)), from_bytes_(size_bytes(from)), to_bytes_(size_bytes(to)) {}

  /// Launches the kernel for no elements. @returns whether the driver has loaded the kernel for the device. The driver
  /// loads a kernel at its first launch, and cannot if it has no compiler for PTX.
  static bool load(DType from, DType to, StreamRef stream) {
    const ScaledCopyBatch batch(from, to);
    if (!batch.kernel_) {
      return false;
    }
    const DeviceGuard guard(stream.device().index);
    const ScaleKernelEntry nothing{};
    try {
      batch.kernel_.launch(&nothing, 1, 1, 1, stream);
    } catch (const Error& error) {
      log_unloaded_kernel(error.what());
      return false;
    }
    return true;
  }

  void reserve(std::size_t copies) { entries_.reserve(copies); }

  void add(std::byte* to, const std::byte* from, std::size_t elements) {
    while (elements != 0) {
      const std::size_t some = std::min(elements, max_entry_elements);
      entries_.push_back({reinterpret_cast<std::uintptr_t>(to), reinterpret_cast<std::uintptr_t>(from),
                          static_cast<std::uint32_t>(some), 0});
      to += some * to_bytes_;
      from += some * from_bytes_;
      elements -= some;
    }
  }

  bool empty() const noexcept { return entries_.empty(); }

  /// Enqueues the copies, and empties the batch. Each target element becomes the source's element times `factor`, see
  /// scale_kernel_text(). Lifetime: the memory outlives the work, the batch need not.
  /// @throws Error (cuda); some copies may be enqueued in spite of it
  void enqueue(double factor, StreamRef stream) {
    const DeviceGuard guard(stream.device().index);
    for (std::size_t begin = 0; begin < entries_.size(); begin += max_scale_entries) {
      const std::size_t count = std::min(entries_.size() - begin, max_scale_entries);
      std::uint32_t blocks = 0;
      for (std::size_t i = begin; i < begin + count; ++i) {
        entries_[i].first_block = blocks;
        blocks += (entries_[i].elements - 1) / scale_block_elements + 1;
      }
      kernel_.launch(&entries_[begin], count, blocks, factor, stream);
    }
    entries_.clear();
  }

 private:
  ScaleKernel kernel_;
  std::size_t from_bytes_;
  std::size_t to_bytes_;
  std::vector<ScaleKernelEntry> entries_;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
