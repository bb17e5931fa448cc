#pragma once
/// @file
/// PackedBroadcast: broadcasts of rank 0's tensors, small ones together. broadcast_values(): rank 0's model, before
/// training. BufferBroadcast: its buffers, after each step.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dtrain/backend/block_until_complete.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/gradient_table.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The largest tensor that shares a broadcast, and the most bytes of such a broadcast.
inline constexpr std::size_t largest_packed_tensor = std::size_t{16} << 10;
inline constexpr std::size_t largest_pack = std::size_t{1} << 20;

/// Small tensors in host memory are copied into packs, each of which is one broadcast of bytes; a model of thousands of
/// biases would otherwise need a broadcast, with its latency, for each. Every other tensor has a separate broadcast.
/// Allocates memory for one pack. Lifetime: the object, which is not movable, and the tensors' memory outlive the
/// broadcasts.
class PackedBroadcast {
 public:
  /// @param tensors equal in number, size and kind of device on every rank
  /// @param packs whether tensors in host memory may be packed; the same on every rank
  PackedBroadcast(std::span<const TensorView> tensors, bool packs);
  PackedBroadcast(PackedBroadcast&&) = delete;
  PackedBroadcast& operator=(PackedBroadcast&&) = delete;

  /// Collective. Blocking: if `send` or `run` is.
  /// @param send `send(view)` broadcasts rank 0's bytes to the others, now or in order on a stream
  /// @param run `run(work)` runs a copy, now or in the same order
  template <class Send, class Run>
  void launch(bool is_root, Send send, Run run) {
    for (const BufferView& tensor : alone_) {
      send(tensor);
    }
    for (const Pack& pack : packs_) {
      if (is_root) run([this, &pack]() noexcept { copy(pack, true); });
      send(BufferView{memory_.get(), pack.bytes, DType::u8, {}});
      if (!is_root) run([this, &pack]() noexcept { copy(pack, false); });
    }
  }

 private:
  /// Tensors [first, end) of small_.
  struct Pack {
    std::size_t first = 0;
    std::size_t end = 0;
    std::size_t bytes = 0;
  };

  /// Copies the tensors of a pack into the memory, or from there.
  void copy(const Pack& pack, bool gathers) const noexcept;

  std::vector<BufferView> alone_;
  std::vector<BufferView> small_;
  std::vector<Pack> packs_;
  std::unique_ptr<std::byte[]> memory_;
};

/// Collective, blocking: returns when all of `values` are rank 0's, in the model's own memory.
/// Precondition: the work that wrote them has run, or `stream` runs after it. Lifetime: `values` outlives
/// `communicator`, which may still use its memory after an exception.
/// @throws the job's first cause; Error (timeout).
template <backend::Communicator Communicator>
void broadcast_values(Communicator& communicator, typename Communicator::Stream stream, PackedBroadcast& values,
                      const FailureContext& context) {
  const auto wait = [&] {
    typename Communicator::Stream::Event done;
    stream.record(done);
    backend::block_until_complete(done, communicator, *context.latch, context.timeout, context.rank);
  };
  // This thread copies: work that an exception leaves on the stream would copy after the end of `values`.
  values.launch(
      communicator.rank() == 0,
      [&](const BufferView& value) {
        communicator.enqueue(backend::Broadcast{value, 0}, stream);
      },
      [&](auto copy) {
        wait();
        copy();
      });
  wait();
}

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

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED PackedBroadcast::PackedBroadcast(std::span<const TensorView> tensors, bool packs) {
  std::size_t most = 0;
  for (const TensorView& tensor : tensors) {
    const std::size_t bytes = tensor.bytes();
    if (bytes == 0) continue;
    if (!packs || bytes > largest_packed_tensor || tensor.device.kind != DeviceKind::host) {
      alone_.push_back(tensor.flat());
      continue;
    }
    if (packs_.empty() || packs_.back().bytes + bytes > largest_pack) {
      packs_.push_back({small_.size(), small_.size(), 0});
    }
    small_.push_back(tensor.flat());
    packs_.back().end += 1;
    packs_.back().bytes += bytes;
    most = std::max(most, packs_.back().bytes);
  }
  if (most != 0) memory_.reset(new std::byte[most]);
}

DTRAIN_DEFINED void PackedBroadcast::copy(const Pack& pack, bool gathers) const noexcept {
  std::byte* at = memory_.get();
  for (std::size_t i = pack.first; i < pack.end; ++i) {
    const BufferView& tensor = small_[i];
    std::memcpy(gathers ? at : tensor.data, gathers ? tensor.data : at, tensor.bytes());
    at += tensor.bytes();
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
