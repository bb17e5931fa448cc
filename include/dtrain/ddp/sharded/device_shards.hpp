#pragma once
/// @file
/// DeviceShards of a DeviceShardedReduction: this rank's share of weights and optimizer state in device memory, and the
/// copies around its update.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_CUDA

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/sharded/device_rule.hpp"
#include "dtrain/ddp/sharded/shard_layout.hpp"
#include "dtrain/ddp/sharded/shards.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/kernels/scaled_copy_batch.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// This rank's share in device memory. A bucket's update is enqueued in three parts: load() copies the elements of this
/// rank's part, without the padding between parameters, to f32 arrays; the rule changes elements(); unload() rounds the
/// new weights to the model's type, in the memory of the gradients. store() copies the gathered weights of all ranks to
/// the model. Weights of f32 models are copied from the model in each step, so that a program may set them; weights of
/// f16 and bf16 models are kept in f32, as one more state array.
/// Threads: one at a time. Steady state: allocates nothing.
class DeviceShards final : public Shards {
 public:
  using Stream = stream::cuda::StreamRef;

  /// Views of a bucket's elements on this rank, in f32.
  struct Elements {
    BufferView weights{};
    BufferView gradients{};
    std::array<BufferView, 8> states{};
    std::span<const ParameterElements> parameters{};
  };

  /// Blocking: allocates zeroed state, loads the kernels, and waits for the values that are being written on the
  /// default stream. @throws Error (unsupported) if the driver does not load the kernels; (cuda)
  DeviceShards(std::vector<Parameter> parameters, const BucketPlan& plan, int rank, int ranks, std::size_t arrays,
               ReadValue read_value, Stream stream, std::chrono::nanoseconds timeout)
      : Shards(std::move(parameters), plan, rank, ranks, arrays, std::move(read_value), stream.device()),
        stream_(stream),
        timeout_(timeout) {
    const int device = stream.device().index;
    std::size_t most = 0;
    bool has_singles = false;
    for (std::size_t bucket = 0; bucket < layout_.buckets.size(); ++bucket) {
      StateRange part{0, 0, copies_of(plan.buckets[bucket].dtype), {}};
      for_each_piece(bucket, {}, [&part](const ShardPiece& piece, std::byte*) {
        if (part.count == 0) part.first = piece.in_state;
        part.count += piece.count;
        part.parameters.push_back({piece.parameter, piece.count});
      });
      most = std::max(most, part.count);
      has_singles = has_singles || (part.count != 0 && !detail::is_half(plan.buckets[bucket].dtype));
      parts_.push_back(std::move(part));
    }
    for (Copies& copies : copies_) {
      for (stream::cuda::ScaledCopyBatch* batch : {&copies.widen, &copies.narrow, &copies.equal})
        batch->reserve(2 * plan.bucket_of.size());
    }
    for (std::size_t i = 0; i < this->arrays(); ++i) {
      arrays_.emplace_back(layout_.state_elements * sizeof(float), device);
      stream::cuda::zero_blocking(arrays_.back().data(), arrays_.back().bytes(), stream, Deadline::after(timeout));
    }
    gradients_ = stream::cuda::DeviceBuffer(most * sizeof(float), device);
    if (has_singles) weights_ = stream::cuda::DeviceBuffer(most * sizeof(float), device);
    wait_for_values();  // f32 values too: a step reads them
    load_weights(std::vector<bool>(parameters_.size(), true));
  }

  TensorView state(std::size_t array, const ShardPiece& piece) noexcept override {
    return {arrays_[array].data() + piece.in_state * sizeof(float),
            {static_cast<std::int64_t>(piece.count)},
            DType::f32,
            stream_.device()};
  }

  /// Bytes of the f32 arrays that a bucket's update uses beside the state.
  std::size_t scratch_bytes() const noexcept { return gradients_.bytes() + weights_.bytes(); }

  /// A bucket's elements, after load(). The states are as many as the rule has.
  Elements elements(std::size_t bucket) const noexcept {
    const StateRange& part = parts_[bucket];
    const auto view = [&](std::byte* data) { return BufferView{data, part.count, DType::f32, stream_.device()}; };
    Elements all{
        view(weights_of(bucket)), view(gradients_.data()), {}, {part.parameters.data(), part.parameters.size()}};
    for (std::size_t i = 0; i < rule_arrays_; ++i) {
      all.states[i] = view(arrays_[i].data() + part.first * sizeof(float));
    }
    return all;
  }

  /// Enqueued: copies the bucket's reduced gradients, multiplied by `factor`, and the model's f32 weights.
  /// @param memory of this rank's part @throws Error (cuda), as do the others
  void load(std::size_t bucket, const ShardMemory& memory, double factor) {
    const bool copies_weights = !is_half(bucket);
    Copies& copies = copies_[parts_[bucket].copies];
    stream::cuda::ScaledCopyBatch& to_weights = factor == 1 ? copies.widen : copies.equal;
    for_each_piece(bucket, memory, [&](const ShardPiece& piece, std::byte* place) {
      const std::size_t at = (piece.in_state - parts_[bucket].first) * sizeof(float);
      copies.widen.add(gradients_.data() + at, place, piece.count);
      if (copies_weights) {
        const std::byte* const value = parameters_[piece.parameter].value.data + piece.offset * sizeof(float);
        to_weights.add(weights_.data() + at, value, piece.count);
      }
    });
    copies.widen.enqueue(factor, stream_);
    copies.equal.enqueue(1, stream_);
  }

  /// Enqueued, after load(): multiplies the bucket's f32 gradients by the f64 that device memory has at `factor` then.
  void scale(std::size_t bucket, const double* factor) {
    scaled_.add(gradients_.data(), gradients_.data(), parts_[bucket].count);
    scaled_.enqueue_in_place(factor, stream_);
  }

  /// Enqueued: replaces the bucket's reduced gradients by the new weights.
  void unload(std::size_t bucket, const ShardMemory& memory) {
    Copies& copies = copies_[parts_[bucket].copies];
    const std::byte* const weights = weights_of(bucket);
    for_each_piece(bucket, memory, [&](const ShardPiece& piece, std::byte* place) {
      copies.narrow.add(place, weights + (piece.in_state - parts_[bucket].first) * sizeof(float), piece.count);
    });
    copies.narrow.enqueue(1, stream_);
  }

  /// Enqueued: copies the weights of the whole bucket to the model.
  void store(std::size_t bucket, const std::byte* range) {
    const PlannedBucket& planned = plan_->buckets[bucket];
    stream::cuda::ScaledCopyBatch& copies = copies_[parts_[bucket].copies].equal;
    for (const std::size_t parameter : planned.parameters) {
      copies.add(parameters_[parameter].value.data, range + (plan_->offset_of[parameter] - planned.offset),
                 parameters_[parameter].value.shape.element_count());
    }
    copies.enqueue(1, stream_);
  }

 private:
  /// Copies of one model type: to f32, from f32, and as they are.
  struct Copies {
    DType dtype;
    stream::cuda::ScaledCopyBatch widen;
    stream::cuda::ScaledCopyBatch narrow;
    stream::cuda::ScaledCopyBatch equal;
  };
  /// A bucket's elements in the state arrays, the index of its copies, and whose the elements are.
  struct StateRange {
    std::size_t first;
    std::size_t count;
    std::size_t copies;
    std::vector<ParameterElements> parameters;  ///< in the order of the elements
  };

  bool is_half(std::size_t bucket) const noexcept { return detail::is_half(plan_->buckets[bucket].dtype); }

  std::byte* weights_of(std::size_t bucket) const noexcept {
    return is_half(bucket) ? arrays_.back().data() + parts_[bucket].first * sizeof(float) : weights_.data();
  }

  std::size_t copies_of(DType dtype) {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      if (copies_[i].dtype == dtype) return i;
    }
    if (!load_kernels(dtype, stream_)) refuse_without_kernels(stream_.device());
    copies_.push_back({dtype, {dtype, DType::f32}, {DType::f32, dtype}, {dtype, dtype}});
    return copies_.size() - 1;
  }

  /// Calls `act(piece, its place)` for each piece of this rank.
  template <class Act>
  void for_each_piece(std::size_t bucket, const ShardMemory& memory, const Act& act) const {
    const std::size_t element = element_bytes(bucket);
    for (const ShardPiece& piece : layout_.buckets[bucket].own) {
      act(piece, memory.block + piece.in_part * element);
    }
    for (const ShardPiece& piece : layout_.buckets[bucket].rest) {
      act(piece, memory.rest + piece.in_part * element);
    }
  }

  /// Enqueued: waits for the values that are being written on the default stream, and on that of values that move.
  void wait_for_values() {
    for (const StreamHandle& writing : {StreamHandle{stream_.device(), nullptr}, writer_}) {
      if (writing.device.kind != DeviceKind::cuda) continue;
      stream::cuda::Event written;
      stream::cuda::with_stream(writing, [&written](Stream values) { values.record(written); });
      stream_.wait(written);
    }
  }

  /// Reads the values behind these streams. Blocking: until the weights are written, which a checkpoint may replace
  /// after this call. @throws Error (timeout)
  void load_weights(const std::vector<bool>& wanted) override {
    if (!has_halves_) return;
    wait_for_values();
    for (std::size_t bucket = 0; bucket < parts_.size(); ++bucket) {
      if (!is_half(bucket)) continue;
      stream::cuda::ScaledCopyBatch& widen = copies_[parts_[bucket].copies].widen;
      for_each_piece(bucket, {}, [&](const ShardPiece& piece, std::byte*) {
        const TensorView& value = parameters_[piece.parameter].value;
        if (!wanted[piece.parameter]) return;
        widen.add(arrays_.back().data() + piece.in_state * sizeof(float),
                  value.data + piece.offset * size_bytes(value.dtype), piece.count);
      });
      widen.enqueue(1, stream_);
    }
    stream::cuda::Event written;
    stream_.record(written);
    if (written.block_until_complete(Deadline::after(timeout_)) != stream::WaitResult::complete) {
      throw_error(Errc::timeout,
                  "the values of a model on {} were not copied to f32 in time; is the device busy, or does a kernel "
                  "hang?",
                  {to_string(stream_.device())});
    }
  }

 public:
  /// @returns whether the driver has loaded the copies of this model type
  static bool load_kernels(DType dtype, Stream stream) {
    using Types = std::pair<DType, DType>;
    const std::array<Types, 3> all{Types(dtype, DType::f32), Types(DType::f32, dtype), Types(dtype, dtype)};
    return std::all_of(all.begin(), all.end(), [stream](const Types& types) {
      return stream::cuda::ScaledCopyBatch::load(types.first, types.second, stream);
    });
  }

  /// @throws Error (unsupported)
  [[noreturn]] DTRAIN_NOT_INLINED static void refuse_without_kernels(Device device) {
    throw_error(Errc::unsupported,
                "ShardedOptimizer needs kernels that the driver of {} does not load (the log says why); use an "
                "optimizer with all of its state on every rank",
                {to_string(device)});
  }

 private:
  Stream stream_;
  std::chrono::nanoseconds timeout_;
  std::vector<Copies> copies_;                      ///< by model type
  std::vector<StateRange> parts_;                   ///< of each bucket
  std::vector<stream::cuda::DeviceBuffer> arrays_;  ///< the rule's arrays, then the f32 weights of a 16-bit model
  stream::cuda::DeviceBuffer gradients_;            ///< of one bucket, in f32
  stream::cuda::DeviceBuffer weights_;              ///< of one bucket of f32
  stream::cuda::ScaledCopyBatch scaled_{DType::f32, DType::f32};
};

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
