#pragma once
/// @file
/// CudaBucketNorms of a BucketReduction: the norm of gradients in device memory, measured after each collective.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/kernels/scaled_copy_batch.hpp"
#include "dtrain/stream/cuda/kernels/square_sum_kernel.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::ddp {

/// Norms of a CUDA stream's steps; members have the meaning of BucketNorms' members. After each bucket's collective a
/// kernel writes the sums of its thread blocks to pinned memory. The host adds the sums in order when the norm is asked
/// for, so that a step itself waits for nothing.
/// A step captured in a graph writes its sums in each replay, to separate memory. A mark in the separate memory says
/// that its sums are not from the last step. The host writes the mark once it has read the sums. A later step outside
/// such a graph writes the mark on the device, after replays that still run. Example: a replay, and a step after it
/// without a wait between the two. The replay overwrites the mark, and the step marks the replay's sums again, so that
/// gradient_norm() gives the step's norm. Threads: enqueue one at a time; everything else between steps. Lifetime: the
/// object outlives the work, and graphs of the work.
class CudaBucketNorms {
 public:
  using Stream = stream::cuda::StreamRef;

  /// Adopts a plan. The first call allocates memory for all plans of the same gradients, and loads the kernels: later
  /// loading may wait for collectives that wait for other ranks. @pre the work of earlier steps has run @throws Error
  /// (cuda)
  void plan(const BucketPlan& plan, Stream stream) {
    add_sums();
    if (memory_.bytes() == 0) prepare(plan, stream);
    first_sums_.assign(1, 0);
    for (const PlannedBucket& bucket : plan.buckets) {
      first_sums_.push_back(first_sums_.back() + stream::cuda::square_sum_blocks(bucket.bytes));
    }
    norms_.plan(plan, stream);
  }

  /// @param caller the user's call @throws Error (unsupported) if the driver has not loaded the kernels for a type
  void require_kernels(const char* caller) const {
    if (without_kernel_) refuse_type(*without_kernel_, caller);
  }

  /// @param wanted requires require_kernels
  void begin_step(bool wanted) noexcept {
    is_wanted_ = wanted;
    is_captured_ = false;
    state_ = State::none;
    norms_.begin_step(false);
  }

  /// Address for the bucket's first sum; null if the step does not measure.
  double* sum_of(std::size_t bucket) noexcept { return is_wanted_ ? sums() + first_sums_[bucket] : nullptr; }

  void enqueue(double* sum, const BufferView& bucket, Stream stream) {
    const bool is_captured = stream.is_capturing();
    stream::cuda::SquareSumKernel::find(bucket.dtype).enqueue(bucket, is_captured ? sum + most_ : sum, stream);
  }

  /// Enqueues the mark after the work of all buckets, and so after earlier work of the gradients' streams, such as a
  /// replay.
  /// @throws Error (cuda)
  void end_buckets(Stream stream) {
    is_captured_ = stream.is_capturing();
    if (!has_graph_ || (is_wanted_ && is_captured_)) return;
    stream::cuda::check(cudaMemsetAsync(&last_replayed_sum(), mark_byte, sizeof(double), stream.native()),
                        "cudaMemsetAsync");
    if (!is_captured_) stream.record(marked_);
  }

  /// Called after end_buckets().
  void finish_step() noexcept {
    if (!is_wanted_) return;
    const bool measures_replays = is_captured_ && first_sums_.back() != 0;
    state_ = measures_replays ? State::captured : State::enqueued;
    if (!measures_replays) return;
    has_graph_ = true;
    mark_replayed_sums();
  }

  bool is_measured() const noexcept { return state_ != State::none || was_replayed(); }

  /// Reads the sums. Blocking: calls `wait()` for the last step's work, if the step measures; not for a replay, which
  /// has run.
  template <class Wait>
  void read(Wait&& wait) {
    if (state_ == State::enqueued && first_sums_.back() != 0) wait();
    add_sums();
  }

  /// Norm of the latest replay or step that was read. @throws Error (invalid_argument) as BucketNorms::norm, or if a
  /// captured step was not replayed
  const GradientNorm& norm() const {
    if (state_ == State::captured && !norms_.is_measured()) refuse_captured();
    return norms_.norm();
  }

  void multiply(double factor) noexcept { norms_.multiply(factor); }

 private:
  /// State of the latest step's sums on the host.
  enum class State { none, enqueued, captured, added };

  /// Each byte of the mark in the last sum. The mark is a negative number, as no sum of squares is.
  static constexpr int mark_byte = 0x80;
  static constexpr std::uint64_t mark = 0x8080'8080'8080'8080;

  void prepare(const BucketPlan& plan, Stream stream) {
    // Each bucket has at least one parameter, and at most one block more than its bytes fill.
    most_ = plan.arena_bytes / stream::cuda::square_sum_block_bytes + plan.bucket_of.size();
    memory_ = stream::cuda::PinnedBuffer((2 * most_ + 1) * sizeof(double));
    std::vector<DType> known;
    for (const PlannedBucket& bucket : plan.buckets) {
      if (bucket.bytes == 0 || std::find(known.begin(), known.end(), bucket.dtype) != known.end()) continue;
      known.push_back(bucket.dtype);
      if (!stream::cuda::SquareSumKernel::load(bucket.dtype, sums() + 2 * most_, stream) ||
          !stream::cuda::ScaledCopyBatch::load(bucket.dtype, bucket.dtype, stream)) {
        without_kernel_ = bucket.dtype;
      }
    }
  }

  double* sums() const noexcept { return reinterpret_cast<double*>(memory_.data()); }
  /// Sums of captured steps.
  double* replayed_sums() const noexcept { return sums() + most_; }
  double& last_replayed_sum() const noexcept { return replayed_sums()[first_sums_.back() - 1]; }

  void mark_replayed_sums() noexcept { last_replayed_sum() = std::bit_cast<double>(mark); }

  /// Whether a replay behind the last step has written sums that were not read. Compares bits, because -ffast-math
  /// takes a NaN for equal.
  bool was_replayed() const noexcept {
    return has_graph_ && (is_captured_ || marked_.is_complete_beside_capture()) &&
           std::bit_cast<std::uint64_t>(last_replayed_sum()) != mark;
  }

  /// Adds the sums, unless they were added before.
  void add_sums() noexcept {
    const bool is_replay = was_replayed();
    if (!is_replay && state_ != State::enqueued) return;
    const double* const from = is_replay ? replayed_sums() : sums();
    norms_.begin_step(true);
    for (std::size_t bucket = 0; bucket + 1 < first_sums_.size(); ++bucket) {
      *norms_.sum_of(bucket) = std::accumulate(from + first_sums_[bucket], from + first_sums_[bucket + 1], 0.0);
    }
    norms_.finish_step();
    if (is_replay) mark_replayed_sums();
    state_ = State::added;
  }

  [[noreturn]] DTRAIN_NOT_INLINED static void refuse_type(DType dtype, const char* caller) {
    throw_error(Errc::unsupported,
                "{} has measure_norm, but there is no kernel for gradients of {} on this GPU: it is for f64, f32, f16 "
                "and bf16, and the driver compiles it, from CUDA 12 on; call it without, and compute the norm with the "
                "device's library after the step",
                {caller, name(dtype)});
  }

  [[noreturn]] DTRAIN_NOT_INLINED static void refuse_captured() {
    throw_error(Errc::invalid_argument,
                "the norm of the gradients was asked for, but the last step was captured in a CUDA graph that has not "
                "run since; launch the graph, and wait for its stream");
  }

  stream::cuda::PinnedBuffer memory_;
  /// Largest number of a plan's sums. Memory holds as many sums for steps, as many for captured steps, and one sum that
  /// is written when kernels are loaded.
  std::size_t most_ = 0;
  std::optional<DType> without_kernel_;
  std::vector<std::size_t> first_sums_{0};  ///< of each bucket, and the end
  BucketNorms norms_;
  State state_ = State::none;
  bool is_wanted_ = false;
  stream::cuda::Event marked_;  ///< recorded after the last step's mark of the replayed sums
  bool is_captured_ = false;    ///< whether the last step was captured
  bool has_graph_ = false;      ///< whether a step with sums was captured
};

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
