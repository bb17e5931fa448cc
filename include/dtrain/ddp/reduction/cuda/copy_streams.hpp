#pragma once
/// @file
/// CUDA streams of a CudaGradientCopier: ProducerStreams, which produced a bucket's gradients; CopyStreams, which pack
/// and unpack during communication.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/stream.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::ddp {

/// Each stream is there once. Streams and events are kept for reuse: a step with the same streams as an earlier one
/// allocates nothing.
class ProducerStreams {
 public:
  bool empty() const noexcept { return used_ == 0; }
  void clear() noexcept { used_ = 0; }

  /// Adds a stream unless it is present.
  void add(StreamHandle stream) {
    const auto end = producers_.begin() + static_cast<std::ptrdiff_t>(used_);
    if (std::any_of(producers_.begin(), end, [&](const Producer& known) { return known.stream == stream; })) return;
    if (used_ == producers_.size()) producers_.emplace_back();
    producers_[used_++].stream = stream;
  }

  void add(const ProducerStreams& others) {
    for (std::size_t i = 0; i < others.used_; ++i) {
      add(others.producers_[i].stream);
    }
  }

  /// Calls `act(stream)` with the StreamRef of each stream.
  template <class Act>
  void for_each(Act act) const {
    for (std::size_t i = 0; i < used_; ++i) {
      stream::cuda::with_stream(producers_[i].stream, act);
    }
  }

  /// Whether one of the streams is captured in a graph.
  bool is_captured() const {
    bool captured = false;
    for_each([&captured](stream::cuda::StreamRef stream) { captured = captured || stream.is_capturing(); });
    return captured;
  }

  /// Records an event at the present end of every stream.
  void record() {
    for (std::size_t i = 0; i < used_; ++i) {
      stream::cuda::with_stream(producers_[i].stream,
                                [&](stream::cuda::StreamRef stream) { stream.record(producers_[i].produced); });
    }
  }

  /// Makes later work of `waiting` run after the recorded events.
  void make_wait(stream::cuda::StreamRef waiting) const {
    for (std::size_t i = 0; i < used_; ++i) {
      waiting.wait(producers_[i].produced);
    }
  }

 private:
  struct Producer {
    StreamHandle stream{};
    stream::cuda::Event produced;
  };

  std::vector<Producer> producers_;  ///< only the first used_ are present
  std::size_t used_ = 0;
};

/// A bucket is packed while earlier buckets are reduced, and unpacked while later buckets are reduced. A single stream
/// for copies and reductions would leave the network idle during copies. Each stream is created when it is first
/// needed; a model whose gradients are all in the arena, without scaling, has no copy stream. A captured step draws
/// only the streams that it uses into its graph, and join_all() joins these streams. Threads: one at a time. Lifetime:
/// the communication stream outlives it.
class CopyStreams {
 public:
  using Stream = stream::cuda::StreamRef;

  explicit CopyStreams(Stream communication) noexcept : communication_(communication) {}

  /// The stream for packing, whose work runs after earlier steps, and not after earlier buckets of this step.
  /// @throws Error (cuda), as do the others
  Stream packing() {
    if (!packing_.stream) fork(packing_);  // the arena may still be in use
    return use(packing_);
  }

  /// Makes later work of the communication stream run after all packing so far.
  void make_communication_wait() { join(packing_); }

  /// The stream for unpacking, whose later work runs after the work now on the communication stream.
  Stream unpacking() {
    fork(unpacking_);
    return use(unpacking_);
  }

  /// Makes later work of the communication stream run after all copies so far.
  void join_all() {
    join(packing_);
    join(unpacking_);
  }

  /// Makes later packing run after `step_end`, an event of the communication stream after join_all(): packing changes
  /// memory that the step's reductions and copies use. Not in a capture, whose streams have all been joined: the next
  /// replay runs after this one.
  void begin_packing_after(const stream::cuda::Event& step_end) {
    if (packing_.stream && !communication_.is_capturing()) packing_.stream->ref().wait(step_end);
  }

 private:
  /// Events are recorded anew for each bucket: a wait is for the latest record at the time of its call.
  struct CopyStream {
    std::optional<stream::cuda::Stream> stream;
    bool is_used = false;  ///< whether it has work for which the communication stream has not waited
    stream::cuda::Event forked;
    stream::cuda::Event end;
  };

  /// Makes later copies run after the work now on the communication stream.
  void fork(CopyStream& copies) const {
    if (!copies.stream) {
      const stream::cuda::RelaxedCapture relaxed;  // the first step may be captured
      copies.stream.emplace(stream::cuda::Priority::high, communication_.device().index);
    }
    communication_.record(copies.forked);
    copies.stream->ref().wait(copies.forked);
  }

  static Stream use(CopyStream& copies) noexcept {
    copies.is_used = true;
    return copies.stream->ref();
  }

  void join(CopyStream& copies) const {
    if (!copies.is_used) return;
    copies.stream->ref().record(copies.end);
    communication_.wait(copies.end);
    copies.is_used = false;
  }

  Stream communication_;
  CopyStream packing_;
  CopyStream unpacking_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
