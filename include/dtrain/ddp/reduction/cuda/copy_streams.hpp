#pragma once
/// @file
/// Copy streams: two CUDA streams that pack and unpack gradients beside the communication stream.

#include <optional>

#include "dtrain/core/config.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/stream.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::ddp {

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
    if (!packing_) {
      make(packing_);
      communication_.record(forked_);
      packing_->ref().wait(forked_);  // the arena may still be in use
    }
    packs_ = true;
    return packing_->ref();
  }

  /// Makes later work of the communication stream run after all packing so far.
  void make_communication_wait() { join_stream(packing_, packs_, packed_); }

  /// The stream for unpacking, whose later work runs after the work now on the communication stream.
  Stream unpacking() {
    if (!unpacking_) {
      make(unpacking_);
    }
    communication_.record(reduced_);
    unpacking_->ref().wait(reduced_);
    unpacks_ = true;
    return unpacking_->ref();
  }

  /// Makes later work of the communication stream run after all copies so far.
  void join_all() {
    join_stream(packing_, packs_, packed_);
    join_stream(unpacking_, unpacks_, unpacked_);
  }

  /// Makes later packing run after `step_end`, an event of the communication stream after join_all(): packing changes
  /// memory that the step's reductions and copies use. Not in a capture, whose streams have all been joined: the next
  /// replay runs after this one.
  void begin_packing_after(const stream::cuda::Event& step_end) {
    if (packing_ && !communication_.is_capturing()) {
      packing_->ref().wait(step_end);
    }
  }

 private:
  using OptionalStream = std::optional<stream::cuda::Stream>;

  void make(OptionalStream& stream) const {
    const stream::cuda::RelaxedCapture relaxed;  // the first step may be captured
    stream.emplace(stream::cuda::Priority::high, communication_.device().index);
  }

  void join_stream(const OptionalStream& stream, bool& is_used, stream::cuda::Event& end) const {
    if (is_used) {
      stream->ref().record(end);
      communication_.wait(end);
      is_used = false;
    }
  }

  Stream communication_;
  OptionalStream packing_;
  OptionalStream unpacking_;
  bool packs_ = false;  ///< whether packing_ has work for which the communication stream has not waited
  bool unpacks_ = false;
  /// @name Recorded anew for each bucket: a wait is for the latest record at the time of its call.
  /// @{
  stream::cuda::Event forked_;
  stream::cuda::Event packed_;
  stream::cuda::Event reduced_;
  stream::cuda::Event unpacked_;
  /// @}
};

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
