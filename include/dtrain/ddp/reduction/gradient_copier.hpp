#pragma once
/// @file
/// HostGradientCopier of a BucketReduction: packs in ready(), unpacks in finish(). GradientCopierFor, BucketNormsFor:
/// by stream.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"
#include "dtrain/ddp/profile/step_meter.hpp"
#include "dtrain/stream/stream.hpp"

#if DTRAIN_WITH_CUDA
#include "dtrain/ddp/reduction/cuda/cuda_bucket_norms.hpp"
#include "dtrain/ddp/reduction/cuda/cuda_gradient_copier.hpp"
#endif

namespace DTRAIN_NAMESPACE::ddp {

/// A gradient copier is the part of a reducer that differs between streams. BucketReduction calls it with indices in
/// range; CudaGradientCopier has further members, which are called if `copies_on_stream`. Threads: `on_gradient_ready`
/// concurrently, for different parameters; before_collective and after_collective under PendingBuckets' mutex;
/// everything else between steps. Lifetime: table, plan and meter outlive it.
template <stream::Stream Stream>
class HostGradientCopier {
 public:
  static constexpr bool copies_on_stream = false;  ///< false: a host thread copies

  /// Whether the meter gets the times at which the stream started and finished each bucket.
  static constexpr bool is_measured = requires(Stream stream, StepMeter::Stamp stamp) { stream.enqueue(stamp); };

  HostGradientCopier(Stream stream, GradientTable& gradients, const BucketPlan& plan, StepMeter& meter)
      : stream_(stream), gradients_(&gradients), plan_(&plan), meter_(&meter) {
    rebuild_buckets();
  }

  Stream stream() const noexcept { return stream_; }

  /// Adopts the plan. Between steps.
  void rebuild_buckets() { reduced_ = std::vector<Event>(plan_->buckets.size()); }

  /// Reserves room in the stream's queue for a step, so that no enqueue finds it full. Between steps. Blocking: until
  /// earlier work has run, if the queue grows. @param items_per_bucket of StepWork
  void reserve([[maybe_unused]] std::uint64_t items_per_bucket) const {
    if constexpr (requires { stream_.reserve(std::uint64_t{}); }) {
      constexpr std::uint64_t stamps = 2;
      constexpr std::uint64_t broadcasts = 1;  // broadcast of the buffers, after the last bucket
      stream_.reserve((items_per_bucket + stamps) * reduced_.size() + broadcasts);
    }
  }

  /// Packs the gradient from `gradient`, its own or other memory.
  void on_gradient_ready(std::size_t parameter, const std::byte* gradient, StreamHandle) const noexcept {
    (*gradients_)[parameter].pack_from(gradient);
  }

  void zero_fill(std::size_t parameter) const noexcept {
    clear((*gradients_)[parameter].place, (*gradients_)[parameter].bytes);
  }

  /// BucketReduction calls both around the enqueueing of a bucket's collective. Here they enqueue stamps, and the
  /// second records the event reduced(bucket); a CudaGradientCopier packs in the first and unpacks in the second.
  void before_collective(std::size_t bucket) const { stamp(bucket, StepEvent::started); }
  void after_collective(std::size_t bucket, bool /*unpacks*/ = true) {
    stamp(bucket, StepEvent::reduced);
    stream_.record(reduced_[bucket]);
  }

  /// Blocking: until all gradients are reduced and unpacked. `wait(event)` throws if the job has failed.
  template <class Wait>
  void finish(Wait&& wait) {
    for (std::size_t bucket = 0; bucket < reduced_.size(); ++bucket) {
      wait(reduced_[bucket]);
      for (const std::size_t parameter : plan_->buckets[bucket].parameters) {
        (*gradients_)[parameter].unpack();
      }
    }
  }

  /// The host has written a gradient when it calls ready().
  void wait_for_producers() const noexcept {}

  /// Multiplies the reduced gradients where the model has them. Between steps.
  template <class Wait>
  void scale_reduced(double factor, Wait&&) const noexcept {
    for (std::size_t parameter = 0; parameter < gradients_->size(); ++parameter) {
      multiply_elements(gradients_->view(parameter).flat(), factor);
    }
  }

  /// Complete once the work of the bucket has run.
  typename Stream::Event& reduced(std::size_t bucket) noexcept { return reduced_[bucket]; }

  /// Blocking: until `deadline` at most. No thread may launch meanwhile.
  /// @returns whether all enqueued work of the stream has run, including that of a bucket whose launch threw
  bool block_until_idle(Deadline deadline) {
    Event done;
    stream_.record(done);
    return done.block_until_complete(deadline) == stream::WaitResult::complete;
  }

  /// Copy between the model's memory and arena slots, for buffers.
  void gather(std::span<const GradientSlot> slots) const noexcept {
    for (const GradientSlot& slot : slots) {
      slot.pack_from(slot.own);
    }
  }
  void scatter(std::span<const GradientSlot> slots) const noexcept {
    for (const GradientSlot& slot : slots) {
      slot.unpack();
    }
  }

  /// Blocking. Between steps.
  template <class Wait>
  void copy(std::byte* to, const std::byte* from, std::size_t bytes, Wait&&) const noexcept {
    if (bytes != 0) {
      std::memcpy(to, from, bytes);
    }
  }

  void clear(std::byte* memory, std::size_t bytes) const noexcept {
    if (bytes != 0) {
      std::memset(memory, 0, bytes);
    }
  }

  /// Whether addresses may change: always, since no graph stores them.
  bool may_move() const noexcept { return true; }

 private:
  using Event = typename Stream::Event;

  void stamp(std::size_t bucket, StepEvent event) const {
    if constexpr (is_measured) {
      stream_.enqueue(meter_->stamp(bucket, event));
    }
  }

  Stream stream_;
  GradientTable* gradients_;
  const BucketPlan* plan_;
  StepMeter* meter_;
  std::vector<Event> reduced_;
};

namespace detail {

template <class Stream>
struct ForStream {
  using Copier = HostGradientCopier<Stream>;
  using Norms = BucketNorms;
};

#if DTRAIN_WITH_CUDA
template <>
struct ForStream<stream::cuda::StreamRef> {
  using Copier = CudaGradientCopier;
  using Norms = CudaBucketNorms;
};
#endif

}  // namespace detail

/// A class with the members of HostGradientCopier.
template <class Stream>
using GradientCopierFor = typename detail::ForStream<Stream>::Copier;

/// A class with the members of BucketNorms.
template <class Stream>
using BucketNormsFor = typename detail::ForStream<Stream>::Norms;

/// Whether steps can measure the norm: the stream is CUDA's or runs work of the host.
template <class Stream>
inline constexpr bool can_measure_norms = requires(BucketNormsFor<Stream> norms, double* sum, BufferView bucket,
                                                   Stream stream) {
  norms.enqueue(sum, bucket, stream);
};

}  // namespace DTRAIN_NAMESPACE::ddp
