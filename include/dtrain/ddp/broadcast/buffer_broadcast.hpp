#pragma once
/// @file
/// BufferBroadcast: rank 0's buffers for every rank, in one collective at the end of each step that does not skip it.
/// BucketReduction owns one.

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Owns the memory in which all buffers, of any types, are sent as bytes. Lifetime: the buffers' memory outlives it.
template <backend::Communicator Communicator>
class BufferBroadcast {
 public:
  /// Collective, blocking: allocates, if there are bytes to send and ranks to receive them.
  BufferBroadcast(Communicator& communicator, std::span<const TensorView> buffers, Deadline deadline)
      : is_root_(communicator.rank() == 0) {
    std::size_t bytes = 0;
    for (const TensorView& buffer : buffers) {
      bytes += detail::padded(buffer.bytes());
    }
    if (bytes == 0 || communicator.size() == 1) {
      return;
    }
    memory_.emplace(communicator.allocate_blocking(bytes, deadline));
    all_ = {memory_->data(), bytes, DType::u8, buffers.front().device};
    std::byte* place = memory_->data();
    for (const TensorView& buffer : buffers) {
      slots_.push_back({buffer.data, place, buffer.bytes()});
      place += detail::padded(buffer.bytes());
    }
  }

  /// @param skips whether this step leaves each rank its own buffers; the same on all ranks
  void begin_step(bool skips) noexcept { skips_ = skips; }

  /// Enqueues the broadcast, after the copier's earlier work, which has waited for the streams that wrote the buffers.
  template <class Copier>
  void launch(Communicator& communicator, Copier& copier) {
    if (!memory_ || skips_) {
      return;
    }
    if (is_root_) {
      copier.gather(slots_);
    }
    communicator.enqueue(backend::Broadcast{all_, 0}, copier.stream());
    if constexpr (Copier::copies_on_stream) {
      scatter(copier);
    }
  }

  /// Call after the broadcast has run.
  template <class Copier>
  void finish(Copier& copier) {
    if constexpr (!Copier::copies_on_stream) {
      if (!skips_) scatter(copier);
    }
  }

 private:
  template <class Copier>
  void scatter(Copier& copier) {
    if (!is_root_) {
      copier.scatter(slots_);
    }
  }

  bool is_root_;
  bool skips_ = false;
  std::optional<typename Communicator::Allocation> memory_;
  BufferView all_{};
  std::vector<GradientSlot> slots_;
};

}  // namespace DTRAIN_NAMESPACE::ddp
