#pragma once
/// @file
/// DeviceShards of a DeviceShardedReduction: this rank's share of weights and optimizer state in device memory, and its
/// update.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_CUDA

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
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
#include "dtrain/stream/cuda/kernels/update_kernel.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// This rank's share in device memory. update() enqueues the update of this rank's part of buckets, without the padding
/// between parameters, and puts the new weights, rounded to the model's type, into the memory of the gradients. store()
/// copies the gathered weights of all ranks to the model. Weights of f32 models are read from the model in each step,
/// so that a program may set them; weights of f16 and bf16 models are kept in f32, as one more state array.
/// - A rule with a formula of UpdateKernel is one kernel, launched for max_update_entries parameters at a time, of
/// several buckets. For another rule, kernels copy weights and gradients to f32 arrays before it, and the new weights
/// back. Threads: one at a time. Steady state: allocates nothing, if the groups of parameters stay the same.
class DeviceShards final : public Shards {
 public:
  using Stream = stream::cuda::StreamRef;

  /// Blocking: allocates zeroed state, loads the kernels, and waits for the values that are being written on the
  /// default stream. @throws Error (unsupported) if the driver does not load the kernels; (cuda)
  DeviceShards(std::vector<Parameter> parameters, const BucketPlan& plan, int rank, int ranks, StateArrays arrays,
               ReadValue read_value, Stream stream, std::chrono::nanoseconds timeout)
      : Shards(std::move(parameters), plan, rank, ranks, arrays, std::move(read_value), stream.device()),
        stream_(stream),
        timeout_(timeout) {
    const int device = stream.device().index;
    for (std::size_t bucket = 0; bucket < layout_.buckets.size(); ++bucket) {
      StateRange part{0, 0, copies_of(plan.buckets[bucket].dtype), {}};
      for_each_piece(bucket, {}, [&part](const ShardPiece& piece, std::byte*) {
        if (part.count == 0) part.first = piece.in_state;
        part.count += piece.count;
        part.parameters.push_back({piece.parameter, piece.count});
      });
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
    wait_for_values();  // f32 values too: a step reads them
    load_weights(std::vector<bool>(parameters_.size(), true));
  }

  /// Before steps with a rule without a formula. Blocking: allocates the f32 arrays of the largest part.
  void allocate_arrays() {
    std::size_t most = 0, most_singles = 0;
    for (std::size_t bucket = 0; bucket < parts_.size(); ++bucket) {
      most = std::max(most, parts_[bucket].count);
      if (!is_half(bucket)) most_singles = std::max(most_singles, parts_[bucket].count);
    }
    gradients_ = stream::cuda::DeviceBuffer(most * sizeof(float), stream_.device().index);
    if (most_singles != 0) weights_ = stream::cuda::DeviceBuffer(most_singles * sizeof(float), stream_.device().index);
  }

  TensorView state(std::size_t array, const ShardPiece& piece) noexcept override {
    return {state_of(array, piece.in_state), {static_cast<std::int64_t>(piece.count)}, DType::f32, stream_.device()};
  }

  /// Bytes of allocate_arrays().
  std::size_t scratch_bytes() const noexcept { return gradients_.bytes() + weights_.bytes(); }

  /// Some buckets, [begin, end).
  struct BucketRange {
    std::size_t begin;
    std::size_t end;
  };

  /// Enqueued: updates the buckets by their reduced gradients, and replaces these by the new weights.
  /// @param memory_of `memory_of(bucket)` is the ShardMemory of this rank's part @param info without parameters
  /// @throws Error (cuda), as does store(); as the rule
  template <DeviceRule R, class MemoryOf>
  void update(BucketRange buckets, const MemoryOf& memory_of, const R& rule, const DeviceStepInfo& info,
              const double* factor) {
    if constexpr (detail::HasFormula<R>) {
      for (Copies& copies : copies_)
        copies.updates_in_use = 0;
      for (std::size_t bucket = buckets.begin; bucket < buckets.end; ++bucket)
        add_updates(bucket, memory_of(bucket), rule, info.step);
      enqueue_updates(info, factor);
    } else {
      for (std::size_t bucket = buckets.begin; bucket < buckets.end; ++bucket)
        update_by_rule(bucket, memory_of(bucket), rule, info, factor);
    }
  }

  /// Enqueued: copies the weights of whole buckets to the model, those of one type together.
  /// @param ranges memory of each bucket
  void store(BucketRange buckets, std::span<const BufferView> ranges) {
    for (std::size_t bucket = buckets.begin; bucket < buckets.end; ++bucket) {
      const PlannedBucket& planned = plan_->buckets[bucket];
      for (const std::size_t parameter : planned.parameters) {
        const TensorView& value = parameters_[parameter].value;
        copies_[parts_[bucket].copies].equal.add(value.data,
                                                 ranges[bucket].data + (plan_->offset_of[parameter] - planned.offset),
                                                 value.shape.element_count());
      }
    }
    for (Copies& copies : copies_)
      copies.equal.enqueue(1, stream_);
  }

 private:
  /// Updates with the same numbers.
  struct Updates {
    stream::cuda::UpdateNumbers numbers;
    stream::cuda::UpdateBatch batch;
  };
  /// Kernels of one model type: copies to f32, from f32 and as they are; updates by a formula.
  struct Copies {
    DType dtype;
    stream::cuda::ScaledCopyBatch widen;
    stream::cuda::ScaledCopyBatch narrow;
    stream::cuda::ScaledCopyBatch equal;
    std::vector<Updates> updates;
    std::size_t updates_in_use = 0;
  };
  /// A bucket's elements in the state arrays, the index of its copies, and whose the elements are.
  struct StateRange {
    std::size_t first;
    std::size_t count;
    std::size_t copies;
    std::vector<ParameterElements> parameters;  ///< parameters in the order of the elements
  };

  template <class R>
  void update_by_rule(std::size_t bucket, const ShardMemory& memory, const R& rule, DeviceStepInfo info,
                      const double* factor) {
    const StateRange& part = parts_[bucket];
    load(bucket, memory, factor);
    const auto view = [&](std::byte* data) { return BufferView{data, part.count, DType::f32, stream_.device()}; };
    std::array<BufferView, 8> states{};
    for (std::size_t i = 0; i < rule_arrays_; ++i) {
      states[i] = view(state_of(i, part.first));
    }
    info.parameters = part.parameters;
    if (part.count != 0) {
      enqueue_rule(rule, view(weights_of(bucket)), view(gradients_.data()), {states.data(), rule_arrays_}, info,
                   stream_);
    }
    unload(bucket, memory);
  }

  /// Adds the bucket's pieces to the batches, for enqueue_updates().
  template <class R>
  void add_updates(std::size_t bucket, const ShardMemory& memory, const R& rule, std::uint64_t step) {
    std::optional<stream::cuda::UpdateNumbers> numbers;
    if constexpr (detail::HasUpdateKernel<R>) numbers = detail::update_numbers(rule, std::max<std::uint64_t>(step, 1));
    Copies& copies = copies_[parts_[bucket].copies];
    std::size_t& used = copies.updates_in_use;
    for_each_piece(bucket, memory, [&](const ShardPiece& piece, std::byte* place) {
      std::byte* const weight = weight_of(bucket, piece);
      if constexpr (!detail::HasUpdateKernel<R>) numbers = update_numbers(rule, piece.parameter, step);
      if (!numbers) {
        copies.narrow.add(place, weight, piece.count);
        return;
      }
      std::size_t at = 0;
      while (at < used && copies.updates[at].numbers != *numbers) {
        ++at;
      }
      if (at == copies.updates.size()) {
        copies.updates.push_back({*numbers, {detail::update_formula<R>(), copies.dtype}});
        copies.updates.back().batch.reserve(2 * plan_->bucket_of.size());
      }
      if (at == used) copies.updates[used++].numbers = *numbers;
      copies.updates[at].batch.add({place, place, weight}, piece.in_state, piece.count);
    });
  }

  void enqueue_updates(const DeviceStepInfo& info, const double* factor) {
    stream::cuda::UpdateArguments given{{}, nullptr, info.found_inf, 1, factor};
    if (info.live != nullptr) given.live = info.live->numbers.data();
    for (std::size_t i = 0; i < rule_arrays_; ++i) {
      given.states[i] = reinterpret_cast<float*>(arrays_[i].data());
    }
    for (Copies& copies : copies_) {
      for (std::size_t i = 0; i < copies.updates_in_use; ++i) {
        given.numbers = copies.updates[i].numbers;
        copies.updates[i].batch.enqueue(given, stream_);
      }
      copies.narrow.enqueue(1, stream_);
    }
  }

  /// Enqueued: copies the bucket's gradients, multiplied by the factor, and the model's f32 weights to f32 arrays.
  void load(std::size_t bucket, const ShardMemory& memory, const double* factor) {
    Copies& copies = copies_[parts_[bucket].copies];
    for_each_piece(bucket, memory, [&](const ShardPiece& piece, std::byte* place) {
      const std::size_t at = (piece.in_state - parts_[bucket].first) * sizeof(float);
      copies.widen.add(gradients_.data() + at, place, piece.count);
      if (!is_half(bucket)) copies.widen.add(weights_.data() + at, weight_of(bucket, piece), piece.count);
    });
    copies.widen.enqueue(1, stream_);
    if (factor == nullptr) return;
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

  bool is_half(std::size_t bucket) const noexcept { return detail::is_half(plan_->buckets[bucket].dtype); }

  std::byte* state_of(std::size_t array, std::size_t first) const noexcept {
    return arrays_[array].data() + first * sizeof(float);
  }

  /// The f32 weights of a bucket, after load().
  std::byte* weights_of(std::size_t bucket) const noexcept {
    return is_half(bucket) ? state_of(arrays_.size() - 1, parts_[bucket].first) : weights_.data();
  }

  /// The f32 weights of a piece that are kept: those of a 16-bit model here, others in the model.
  std::byte* weight_of(std::size_t bucket, const ShardPiece& piece) const noexcept {
    return is_half(bucket) ? state_of(arrays_.size() - 1, piece.in_state)
                           : parameters_[piece.parameter].value.data + piece.offset * sizeof(float);
  }

  std::size_t copies_of(DType dtype) {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      if (copies_[i].dtype == dtype) return i;
    }
    if (!load_kernels(dtype, stream_)) refuse_without_kernels(stream_.device());
    copies_.push_back({dtype, {dtype, DType::f32}, {DType::f32, dtype}, {dtype, dtype}, {}, 0});
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

  /// Reads the values after these streams. Blocking: until the weights are written, which a checkpoint may replace
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
        widen.add(weight_of(bucket, piece), value.data + piece.offset * size_bytes(value.dtype), piece.count);
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
  std::vector<Copies> copies_;                      ///< copies by model type
  std::vector<StateRange> parts_;                   ///< range of each bucket
  std::vector<stream::cuda::DeviceBuffer> arrays_;  ///< the rule's arrays, then the f32 weights of a 16-bit model
  stream::cuda::DeviceBuffer gradients_;            ///< one bucket's, in f32; empty for a rule with a formula
  stream::cuda::DeviceBuffer weights_;              ///< one bucket's, of f32; empty for a rule with a formula
  stream::cuda::ScaledCopyBatch scaled_{DType::f32, DType::f32};
};

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
