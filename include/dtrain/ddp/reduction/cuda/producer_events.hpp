#pragma once
/// @file
/// Producer events: the streams that produced the gradients of one bucket, each with a CUDA event.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/stream_handle.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::ddp {

/// The streams that produced gradients of a step, each once.
class ProducerStreams {
 public:
  auto begin() const noexcept { return streams_.begin(); }
  auto end() const noexcept { return streams_.end(); }
  bool empty() const noexcept { return streams_.empty(); }
  void clear() noexcept { streams_.clear(); }

  void add(StreamHandle stream) {
    if (std::find(begin(), end(), stream) == end()) {
      streams_.push_back(stream);
    }
  }

  /// Whether one of the streams is captured in a graph.
  bool is_captured() const {
    bool captured = false;
    for (const StreamHandle handle : streams_) {
      stream::cuda::with_stream(
          handle, [&captured](stream::cuda::StreamRef stream) { captured = captured || stream.is_capturing(); });
    }
    return captured;
  }

 private:
  std::vector<StreamHandle> streams_;
};

/// Events are created once and reused: a step with the same streams as an earlier one allocates nothing.
class ProducerEvents {
 public:
  void clear() noexcept { used_ = 0; }

  /// Adds a stream unless it is present.
  void add(StreamHandle stream) {
    const auto end = events_.begin() + static_cast<std::ptrdiff_t>(used_);
    if (std::any_of(events_.begin(), end, [&](const ProducerEvent& event) { return event.stream == stream; })) {
      return;
    }
    if (used_ == events_.size()) {
      events_.emplace_back();
    }
    events_[used_++].stream = stream;
  }

  /// Records an event at the present end of every stream.
  void record() {
    for (std::size_t i = 0; i < used_; ++i) {
      stream::cuda::with_stream(events_[i].stream,
                                [&](stream::cuda::StreamRef stream) { stream.record(events_[i].produced); });
    }
  }

  /// Makes later work of `waiting` run after the recorded events.
  void make_wait(stream::cuda::StreamRef waiting) const {
    for (std::size_t i = 0; i < used_; ++i) {
      waiting.wait(events_[i].produced);
    }
  }

 private:
  struct ProducerEvent {
    StreamHandle stream{};
    stream::cuda::Event produced;
  };

  std::vector<ProducerEvent> events_;
  std::size_t used_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
