#pragma once
/// @file
/// DdpOptions: what a user may choose about the reduction of gradients.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/core/error.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/core/types/stream_handle.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/stream/host/progress.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The same on every rank, except for recording, checking, `progress` and `producer_stream`; a difference is an error
/// on all of them.
struct DdpOptions {
  std::size_t bucket_bytes = BucketCaps{}.bucket_bytes;              ///< 0: a bucket for each parameter
  std::size_t first_bucket_bytes = BucketCaps{}.first_bucket_bytes;  ///< above bucket_bytes it counts as bucket_bytes
  ReduceOp reduce_op = ReduceOp::average;                            ///< or sum
  Accumulate accumulate = Accumulate::element;  ///< of f16 and bf16: f32 also where GroupOptions do not say so
  /// The buckets stay as they were planned at the start, so that every run with the same model, options, ranks and
  /// nodes gives the same bits; a backend that does not promise that (backend::Determinism) is refused.
  bool deterministic = false;
  /// At the end of the first step the buckets are planned once more, in the order in which rank 0's gradients were
  /// ready; gradients that were bound may move then, with what they hold. Not with `deterministic`, nor where the first
  /// step became part of a CUDA graph.
  bool reorder_gradients = true;
  /// A parameter that is not announced in a step counts as zeros on that rank, unless steps under no_sync() since the
  /// last one have left something in its gradient; else finish() names it in an error. What is not announced is known
  /// in finish() only: steps of several such wrappers end in one order on all ranks. On CUDA streams that gradients
  /// came from outlive the wrapper then.
  bool allow_unused_parameters = false;
  /// Each step gives every rank rank 0's buffers, where the model has buffers(). From the last ready() to finish() they
  /// are not touched.
  bool broadcast_buffers = true;
  /// parameters() is read again, at the beginning and at the end of a step, to find values and gradients that have
  /// moved since the construction: in every step, or (false) in the first two and every 64th. Where it is not set,
  /// in every step as long as that takes less than 1 us a parameter.
  std::optional<bool> check_addresses{};
  /// Every ready() is recorded, too, and on CUDA when the device came to a bucket and was done with it, which costs
  /// some microseconds a bucket; records are kept of many steps.
  bool timeline = false;
  /// On CUDA statistics() tells how long communication took and how much of it backward hid, measured by events that
  /// cost some microseconds a bucket; with `timeline` it does, too. On host streams it always does.
  bool device_times = false;
  /// On CUDA: the stream that values, gradients and buffers were written on before the construction. Without one, the
  /// device's default stream, which also stands for all streams that are not made non-blocking.
  StreamHandle producer_stream{};
  stream::host::Progress progress = stream::host::Progress::automatic;  ///< the thread that runs the communication

  BucketCaps caps() const noexcept { return {first_bucket_bytes, bucket_bytes}; }
};

/// @throws Error (invalid_argument).
inline void check_options(const DdpOptions& options) {
  if (options.reduce_op != ReduceOp::average && options.reduce_op != ReduceOp::sum) {
    throw Error(Errc::invalid_argument, std::string("DdpOptions::reduce_op is ") + name(options.reduce_op) +
                                            "; gradients are combined by average or sum");
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::DdpOptions;
}  // namespace DTRAIN_NAMESPACE
