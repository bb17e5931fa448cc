#pragma once
/// @file
/// CudaGradientCopier of a BucketReduction: packs and unpacks gradients in device memory, ordered by streams, without
/// host waits.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/profile/device_times.hpp"
#include "dtrain/ddp/profile/step_meter.hpp"
#include "dtrain/ddp/reduction/cuda/bucket_copies.hpp"
#include "dtrain/ddp/reduction/cuda/copy_streams.hpp"
#include "dtrain/stream/cuda/copy_batch.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::ddp {

/// The gradient copier (see HostGradientCopier) of a CUDA stream. on_gradient_ready only stores the stream. When a
/// bucket is complete, an event is recorded on each stream that produced one of its gradients. Unbound gradients are
/// packed and unpacked on separate streams (CopyStreams), while other buckets are reduced. Without unbound gradients
/// the communication stream waits for the events itself. Within a step the host waits for nothing and queries no event,
/// so that a step can be captured in a CUDA graph.
class CudaGradientCopier {
 public:
  using Stream = stream::cuda::StreamRef;

  static constexpr bool copies_on_stream = true;
  static constexpr bool is_measured = false;  // times need DeviceTimes: the host does not know when a bucket runs

  CudaGradientCopier(Stream stream, GradientTable& gradients, const BucketPlan& plan, StepMeter& meter)
      : stream_(stream),
        copy_streams_(stream),
        gradients_(&gradients),
        plan_(&plan),
        meter_(&meter),
        times_(meter, stream.device().index),
        announced_(gradients.size()) {
    rebuild_buckets();
  }

  Stream stream() const noexcept { return stream_; }

  /// Makes later work of `stream` run after the work now on `producer`; a host `producer` means the default stream.
  static void order_behind(Stream stream, StreamHandle producer) {
    stream::cuda::Event written;
    stream::cuda::with_stream(
        producer.device.kind == DeviceKind::cuda ? producer : StreamHandle{stream.device(), nullptr},
        [&](Stream producer_stream) { producer_stream.record(written); });
    stream.wait(written);
  }

  /// Lets later steps multiply each gradient by `factor` before the collective, bound gradients in place. @pre
  /// scales_averages()
  void scale_when_packing(double factor) {
    factor_ = factor;
    rebuild_buckets();
  }

  void rebuild_buckets() {
    bucket_copies_.plan(*plan_, factor_ != 1, stream_);
    packing_at_ready_.plan(*plan_);
    bucket_producers_ = std::vector<ProducerStreams>(plan_->buckets.size());
    copies_.reserve(gradients_->size());
    times_.plan(plan_->buckets.size());
  }

  void begin_step() noexcept {
    producers_.clear();
    packing_at_ready_.begin_step();
    times_.begin_step();
  }

  /// Adds the times of earlier steps to the meter. Blocking: no.
  void collect_times() noexcept { times_.collect(); }

  /// Stores the stream; for a plan that reuses memory, enqueues the packing there. @throws Error (cuda)
  void on_gradient_ready(std::size_t parameter, const std::byte* gradient, StreamHandle stream) {
    if (plan_->reuses_memory) {
      const stream::cuda::Event* const earlier = is_captured_ ? nullptr : &done_;
      gradient = packing_at_ready_.pack(parameter, gradient, (*gradients_)[parameter], factor_, stream, earlier);
    }
    announced_[parameter] = {gradient, stream, false};
  }

  /// Adds the stream of a ready parameter to the streams that zero fills wait for, and that wait for the reduction.
  void note_producer(std::size_t parameter) { producers_.add(announced_[parameter].stream); }

  /// Replaces the gradient by zeros. Keeps the stream that last produced it, where the gradient's owner may still use
  /// it.
  void zero_fill(std::size_t parameter) noexcept {
    announced_[parameter] = {nullptr, announced_[parameter].stream, true};
  }

  void complete(std::size_t bucket) {
    ProducerStreams& producers = bucket_producers_[bucket];
    producers.clear();
    for (const std::size_t parameter : plan_->buckets[bucket].parameters) {
      if (!announced_[parameter].is_zero_filled) {
        producers.add(announced_[parameter].stream);
        producers_.add(announced_[parameter].stream);
        continue;
      }
      producers.add(producers_);  // they may still write the gradient that zeros replace
      const StreamHandle earlier = announced_[parameter].stream;
      if (earlier.device.kind == DeviceKind::cuda &&
          !producers_.is_captured()) {  // a graph cannot wait for work outside it
        producers.add(earlier);
        producers_.add(earlier);
      }
    }
    producers.record();
  }

  void before_collective(std::size_t bucket) {
    const std::vector<std::size_t>& parameters = plan_->buckets[bucket].parameters;
    for (const std::size_t parameter : parameters) {
      const GradientSlot& slot = (*gradients_)[parameter];
      const AnnouncedGradient& announced = announced_[parameter];
      if (announced.is_zero_filled) continue;  // cleared below
      const bool is_packed = announced.gradient == slot.place;
      if (!is_packed || (factor_ != 1 && !plan_->reuses_memory)) {
        bucket_copies_.add(bucket, slot.place, announced.gradient, slot.bytes);
      }
    }
    enqueue_packing(bucket);
    for (const std::size_t parameter : parameters) {
      const GradientSlot& slot = (*gradients_)[parameter];
      if (announced_[parameter].is_zero_filled) {
        clear(slot.place, detail::padded(slot.bytes));
      } else if (plan_->reuses_memory && announced_[parameter].gradient != slot.place) {  // comes from a side buffer
        clear(slot.place + slot.bytes, detail::padded(slot.bytes) - slot.bytes);
      }
    }
    times_.started(bucket, stream_);
    stamp(bucket, StepEvent::started);
  }

  void after_collective(std::size_t bucket, bool unpacks = true) {
    times_.reduced(bucket, stream_);
    stamp(bucket, StepEvent::reduced);
    if (plan_->reuses_memory) packing_at_ready_.launched(bucket, stream_);
    if (!unpacks) return;
    for (const std::size_t parameter : plan_->buckets[bucket].parameters) {
      const GradientSlot& slot = (*gradients_)[parameter];
      if (!slot.is_bound()) bucket_copies_.add(bucket, slot.own, slot.place, slot.bytes);
    }
    if (!bucket_copies_.empty(bucket)) bucket_copies_.enqueue(bucket, 1, copy_streams_.unpacking());
  }

  /// Makes later work of every stream that produced a gradient of this step run after the last bucket, and the next
  /// step's packing. Blocking: only if no parameter was ready, so that no stream waits.
  template <class Wait>
  void finish(Wait&& wait) {
    copy_streams_.join_all();
    is_captured_ = stream_.is_capturing();
    has_graph_ = has_graph_ || is_captured_;
    times_.ended(stream_);
    stream_.record(done_);
    copy_streams_.begin_packing_after(done_);
    producers_.for_each([this](Stream producer) {
      times_.computed(producer);
      producer.wait(done_);
    });
    times_.end_step();
    if (producers_.empty()) {
      wait(done_);
    }
  }

  /// Within a step, after its last ready(): `stream` counts as one that produced a gradient.
  void note_stream(StreamHandle stream) { producers_.add(stream); }

  /// Makes later work of the communication stream run after the work now on the streams that produced gradients.
  void wait_for_producers() {
    producers_.record();
    producers_.make_wait(stream_);
  }

  /// Makes later work of `waiting` run after the last step.
  void make_wait(StreamHandle waiting) const {
    stream::cuda::with_stream(waiting, [this](Stream stream) { stream.wait(done_); });
  }

  /// Complete once the last step has ended on the device.
  stream::cuda::Event& step_end() noexcept { return done_; }

  /// Whether work in the order of the last step's producers is captured in a graph.
  bool is_capturing() const { return is_captured_ ? stream_.is_capturing() : producers_.is_captured(); }

  /// Calls `enqueue_factor(stream)`, then multiplies the reduced gradients by the f64 at `factor` in device memory, in
  /// the order of the step's producers; see HostGradientCopier. Outside a capture blocking if there are no producers,
  /// or if a step was captured: the host has waited for the replay, whose streams are not known.
  template <class EnqueueFactor, class Wait>
  void scale_reduced(const double* factor, const EnqueueFactor& enqueue_factor, Wait&& wait) {
    const bool captures = is_capturing();
    if (is_captured_ && !captures) producers_.clear();
    scale_in_step(factor, enqueue_factor, wait);
    if (!captures && has_graph_ && !producers_.empty()) wait(done_);
  }

  /// The same at the end of finish(), whose streams are known. Blocking: only as finish().
  template <class EnqueueFactor, class Wait>
  void scale_in_step(const double* factor, const EnqueueFactor& enqueue_factor, Wait&& wait) {
    wait_for_producers();
    enqueue_factor(stream_);
    for (std::size_t parameter = 0; parameter < gradients_->size(); ++parameter) {
      const TensorView& gradient = gradients_->view(parameter);
      bucket_copies_.add(plan_->bucket_of[parameter], gradient.data, gradient.data, gradient.bytes());
    }
    bucket_copies_.enqueue_all_in_place(factor, stream_);
    stream_.record(done_);
    producers_.for_each([this](Stream producer) { producer.wait(done_); });
    if (producers_.empty()) wait(done_);
  }

  void gather(std::span<const GradientSlot> slots) {
    for (const GradientSlot& slot : slots) {
      copies_.add(slot.place, slot.own, slot.bytes);
    }
    copies_.enqueue(stream_);
  }
  void scatter(std::span<const GradientSlot> slots) {
    for (const GradientSlot& slot : slots) {
      copies_.add(slot.own, slot.place, slot.bytes);
    }
    copies_.enqueue(stream_);
  }

  void enqueue_copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    if (bytes != 0) {
      stream::cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.native()), "cudaMemcpyAsync");
    }
  }

  /// Blocking. Between steps.
  template <class Wait>
  void copy(std::byte* to, const std::byte* from, std::size_t bytes, Wait&& wait) {
    if (bytes != 0) {
      enqueue_copy(to, from, bytes);
      synchronize(wait);
    }
  }

  /// Memory for enqueue_copy(), freed after the copies enqueued before its destruction; null if there is none left.
  stream::cuda::StreamOrderedBuffer try_allocate(std::size_t bytes) const { return {bytes, stream_}; }

  /// Blocking: until all enqueued work of the stream has run. Between steps.
  template <class Wait>
  void synchronize(Wait&& wait) {
    stream_.record(done_);
    wait(done_);
  }

  void clear(std::byte* memory, std::size_t bytes) const {
    if (bytes != 0) {
      stream::cuda::check(cudaMemsetAsync(memory, 0, bytes, stream_.native()), "cudaMemsetAsync");
    }
  }

  /// Whether addresses may change: not if the step is captured in a graph, which stores them.
  bool may_move() const { return !stream_.is_capturing(); }

  /// Blocking: until `deadline` at most. @returns whether all enqueued work of the stream has run; true during a
  /// capture, whose work does not run and cannot be waited for.
  bool block_until_idle(Deadline deadline) {
    if (stream_.is_capturing()) return true;
    copy_streams_.join_all();
    stream_.record(done_);
    return done_.block_until_complete(deadline) == stream::WaitResult::complete;
  }

 private:
  struct AnnouncedGradient {
    const std::byte* gradient = nullptr;
    StreamHandle stream{};
    bool is_zero_filled = false;
  };

  /// Enqueues packing after the bucket's producers. If there is nothing to pack, the communication stream waits for the
  /// producers.
  void enqueue_packing(std::size_t bucket) {
    const bool packs = !bucket_copies_.empty(bucket);
    // Reused memory is free after the communication stream's earlier work.
    const Stream packing = packs && !plan_->reuses_memory ? copy_streams_.packing() : stream_;
    bucket_producers_[bucket].make_wait(packing);
    if (packs) bucket_copies_.enqueue(bucket, factor_, packing);
    copy_streams_.make_communication_wait();
  }

  /// Enqueues a host function, only if all records are wanted, since it costs some microseconds. Not in a capture: a
  /// graph would call it in every replay.
  void stamp(std::size_t bucket, StepEvent event) const {
    if (!meter_->is_complete() || stream_.is_capturing()) return;
    const auto pass = [](void* given) {
      (*std::unique_ptr<StepMeter::Stamp>(static_cast<StepMeter::Stamp*>(given)))();
    };
    auto stamp = std::make_unique<StepMeter::Stamp>(meter_->stamp(bucket, event));
    stream::cuda::check(cudaLaunchHostFunc(stream_.native(), pass, stamp.get()), "cudaLaunchHostFunc");
    static_cast<void>(stamp.release());
  }

  Stream stream_;
  CopyStreams copy_streams_;
  GradientTable* gradients_;
  const BucketPlan* plan_;
  StepMeter* meter_;
  DeviceTimes times_;
  std::vector<AnnouncedGradient> announced_;
  std::vector<ProducerStreams> bucket_producers_;
  ProducerStreams producers_;  ///< streams of the step so far
  BucketCopies bucket_copies_;
  PackingAtReady packing_at_ready_;
  stream::cuda::CopyBatch copies_;  ///< copies between steps
  double factor_ = 1;               ///< 1: gradients are packed as they are
  stream::cuda::Event done_;
  bool is_captured_ = false;  ///< whether the last step was captured
  bool has_graph_ = false;    ///< whether a step was captured
};

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
