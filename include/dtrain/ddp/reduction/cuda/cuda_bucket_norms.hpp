#pragma once
/// @file
/// CudaBucketNorms of a BucketReduction: gradient norm in device memory, measured after each collective.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/precision/device_loss_scaler.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/kernels/norm_kernels.hpp"
#include "dtrain/stream/cuda/kernels/scaled_copy_batch.hpp"
#include "dtrain/stream/cuda/kernels/square_sum_kernel.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::ddp {

/// Norms of a CUDA stream's steps; members have the meaning of BucketNorms' members. After each bucket's collective a
/// kernel writes the sums of its thread blocks to device memory. After the last bucket a kernel writes the norm: to
/// device memory, where rescale() changes it, and to pinned memory, for the host. A step itself waits for nothing. A
/// step captured in a graph writes the norm in each replay, to separate pinned memory. A flag there says that the norm
/// is of a replay after the last step that the host knows. The host clears the flag once it has read the norm. A later
/// step outside such a graph clears it on the device, after replays that still run. Example: a replay, and a step after
/// it without a wait between the two. The replay sets the flag, and the step clears it again, so that gradient_norm()
/// gives the step's norm. Threads: enqueue one at a time; everything else between steps. Lifetime: the object outlives
/// the work, and graphs of the work.
class CudaBucketNorms {
 public:
  using Stream = stream::cuda::StreamRef;

  /// Adopts a plan. The first call allocates memory for all plans of the same gradients, and loads the kernels: later
  /// loading may wait for collectives that wait for other ranks. @pre the work of earlier steps has run @throws Error
  /// (cuda)
  void plan(const BucketPlan& plan, Stream stream) {
    if (copies_.bytes() == 0) prepare(plan, stream);
    first_sums_.assign(1, 0);
    for (const PlannedBucket& bucket : plan.buckets) {
      first_sums_.push_back(first_sums_.back() + stream::cuda::square_sum_blocks(bucket.bytes));
    }
  }

  /// @param caller the user's call @throws Error (unsupported) if the driver has not loaded the kernels for a type;
  /// (invalid_argument) if the scaler, if any, is on another device
  void require_usable(const DeviceLossScaler* scaler, const char* caller) const {
    if (without_kernel_) refuse_type(*without_kernel_, caller);
    if (scaler != nullptr) scaler->require_device(memory_.device());
  }

  /// @param wanted requires require_usable
  void begin_step(bool wanted) noexcept {
    is_wanted_ = wanted;
    is_captured_ = false;
    state_ = State::none;
    norm_.reset();
  }

  /// Address for the bucket's first sum; null if the step does not measure.
  double* sum_of(std::size_t bucket) noexcept { return is_wanted_ ? sums() + first_sums_[bucket] : nullptr; }

  static void enqueue(double* sum, const BufferView& bucket, Stream stream) {
    stream::cuda::SquareSumKernel::find(bucket.dtype).enqueue(bucket, sum, stream);
  }

  /// Enqueues the norm after the work of all buckets, and so after earlier work of the gradients' streams, a replay
  /// among it. @throws Error (cuda)
  void end_buckets(Stream stream) {
    is_captured_ = stream.is_capturing();
    if (is_wanted_) kernels_.measure(on_device(), copy_for(is_captured_), sums(), first_sums_.back(), stream);
    if (!has_graph_ || (is_wanted_ && is_captured_)) return;
    std::uint32_t& flag = replayed().is_written;
    stream::cuda::check(cudaMemsetAsync(&flag, 0, sizeof(flag), stream.native()), "cudaMemsetAsync");
    if (!is_captured_) stream.record(cleared_);
  }

  /// Called after end_buckets().
  void finish_step() noexcept {
    if (is_wanted_) note_enqueued(is_captured_);
  }

  /// Enqueues copies of a norm that the step's work has measured or changed elsewhere in device memory. Within a step,
  /// after end_buckets(). @throws Error (cuda)
  void adopt(const stream::cuda::DeviceNorm* norm, Stream stream) {
    for (stream::cuda::DeviceNorm* const to : {on_device(), copy_for(is_captured_)}) {
      stream::cuda::check(cudaMemcpyAsync(to, norm, sizeof(*norm), cudaMemcpyDefault, stream.native()),
                          "cudaMemcpyAsync");
    }
    note_enqueued(is_captured_);
  }

  bool is_measured() const noexcept { return state_ != State::none || was_replayed(); }

  /// Reads the norm. Blocking: calls `wait()` for the last step's work, if the step measures; not for a replay, which
  /// has run.
  template <class Wait>
  void read(Wait&& wait) {
    if (state_ == State::enqueued) wait();
    const bool is_replay = was_replayed();
    if (!is_replay && state_ != State::enqueued) return;
    const stream::cuda::DeviceNorm& from = is_replay ? replayed() : *copy_for(false);
    norm_ = GradientNorm{from.norm, from.found_inf == 0, from.before_clipping};
    if (is_replay) replayed().is_written = 0;
    state_ = State::read;
  }

  /// Norm of the latest replay or step that was read. @throws Error (invalid_argument) as BucketNorms::norm, or if a
  /// captured step was not replayed
  const GradientNorm& norm() const {
    if (state_ == State::captured && !norm_) refuse_captured();
    if (!norm_) BucketNorms::refuse_unmeasured();
    return *norm_;
  }

  /// Whether the norm that rescale() changes is known to be of the last step, and changes in order with it: in a
  /// capture, and where no step was captured. Else read() comes first.
  /// @throws Error (invalid_argument) as BucketNorms::norm
  bool may_rescale(bool captures) const {
    if (has_graph_ && !captures) return false;
    if (!is_wanted_) BucketNorms::refuse_unmeasured();
    return true;
  }

  /// Enqueues a change of the norm in device memory: divides by the scale of `scaler` or, without one, multiplies by
  /// `factor`; then clips. @pre the step that measures is being finished, or may_rescale(), or the norm was read
  /// @param max_norm infinity: does not clip @throws Error (cuda)
  void rescale(const DeviceLossScaler* scaler, double factor, double max_norm, Stream stream) {
    const bool captures = stream.is_capturing();
    if (scaler != nullptr) {
      scaler->enqueue(on_device(), copy_for(captures), max_norm, stream);
    } else {
      kernels_.rescale(on_device(), copy_for(captures), factor, max_norm, stream);
    }
    note_enqueued(captures);
  }

  /// In device memory: the factor of the last rescale(). Lifetime: the object's.
  const double* factor() const noexcept { return &on_device()->factor; }

  /// In device memory: 1 if the gradients of the last step that measured are not finite, else 0. Lifetime: the
  /// object's.
  const float* found_inf() const noexcept { return &on_device()->found_inf; }

 private:
  /// State of the latest step's norm on the host.
  enum class State { none, enqueued, captured, read };

  void prepare(const BucketPlan& plan, Stream stream) {
    using stream::cuda::DeviceNorm;
    // Each bucket has at least one parameter, and at most one block more than its bytes fill. Loading writes one sum.
    const std::size_t most = plan.arena_bytes / stream::cuda::square_sum_block_bytes + plan.bucket_of.size() + 1;
    memory_ = stream::cuda::DeviceBuffer(sizeof(DeviceNorm) + most * sizeof(double), stream.device().index);
    copies_ = stream::cuda::PinnedBuffer(2 * sizeof(DeviceNorm));
    *copy_for(false) = *copy_for(true) = DeviceNorm{};
    stream::cuda::check(cudaMemsetAsync(memory_.data(), 0, sizeof(DeviceNorm), stream.native()), "cudaMemsetAsync");
    std::vector<DType> known;
    for (const PlannedBucket& bucket : plan.buckets) {
      if (bucket.bytes == 0 || std::find(known.begin(), known.end(), bucket.dtype) != known.end()) continue;
      known.push_back(bucket.dtype);
      if (!stream::cuda::SquareSumKernel::load(bucket.dtype, sums(), stream) ||
          !stream::cuda::ScaledCopyBatch::load_in_place(bucket.dtype, factor(), stream)) {
        without_kernel_ = bucket.dtype;
      }
    }
    if (!known.empty() && !without_kernel_ && !kernels_.load(on_device(), copy_for(false), stream)) {
      without_kernel_ = known.front();
    }
  }

  stream::cuda::DeviceNorm* on_device() const noexcept {
    return reinterpret_cast<stream::cuda::DeviceNorm*>(memory_.data());
  }
  double* sums() const noexcept { return reinterpret_cast<double*>(memory_.data() + sizeof(stream::cuda::DeviceNorm)); }

  /// The copy for the host, of steps or of replays.
  stream::cuda::DeviceNorm* copy_for(bool replays) const noexcept {
    return reinterpret_cast<stream::cuda::DeviceNorm*>(copies_.data()) + (replays ? 1 : 0);
  }
  stream::cuda::DeviceNorm& replayed() const noexcept { return *copy_for(true); }

  void note_enqueued(bool captured) noexcept {
    state_ = captured ? State::captured : State::enqueued;
    if (!captured) return;
    norm_.reset();
    has_graph_ = true;
    replayed().is_written = 0;
  }

  /// Whether a replay after the last step has written a norm that was not read.
  bool was_replayed() const noexcept {
    return has_graph_ && (is_captured_ || cleared_.is_complete_beside_capture()) && replayed().is_written != 0;
  }

  [[noreturn]] DTRAIN_NOT_INLINED static void refuse_type(DType dtype, const char* caller) {
    throw_error(Errc::unsupported,
                "{} has options that need the norm, but there is no kernel for gradients of {} on this GPU: it is for "
                "f64, f32, f16 and bf16, and the driver compiles it, from CUDA 12 on; call it without, and compute the "
                "norm with the device's library after the step",
                {caller, name(dtype)});
  }

  [[noreturn]] DTRAIN_NOT_INLINED static void refuse_captured() {
    throw_error(Errc::invalid_argument,
                "the norm of the gradients was asked for, but the last step was captured in a CUDA graph that has not "
                "run since; launch the graph, and wait for its stream");
  }

  stream::cuda::DeviceBuffer memory_;  ///< a DeviceNorm, and sums of squares for the largest plan
  stream::cuda::PinnedBuffer copies_;  ///< copies of the DeviceNorm, one for steps and one for replays
  stream::cuda::NormKernels kernels_;
  std::optional<DType> without_kernel_;
  std::vector<std::size_t> first_sums_{0};  ///< first sum of each bucket, and the end
  std::optional<GradientNorm> norm_;
  State state_ = State::none;
  bool is_wanted_ = false;
  stream::cuda::Event cleared_;  ///< recorded after the last step's clearing of the replays' flag
  bool is_captured_ = false;     ///< whether the last step was captured
  bool has_graph_ = false;       ///< whether a step with a norm, or its rescaling, was captured
};

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
