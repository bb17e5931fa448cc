#pragma once
/// @file
/// ProducerStreams of CudaGradientCopier: the streams that produced a bucket's gradients, each with an event.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/stream/cuda/event.hpp"
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

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
