#pragma once
/// @file
/// hooks::TopK: sends the largest elements of each gradient.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"
#include "dtrain/ddp/hooks/hook_ranks.hpp"
#include "dtrain/ddp/hooks/largest_elements.hpp"
#include "dtrain/ddp/hooks/residuals.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

struct TopKOptions {
  double fraction = 0.01;         ///< of a gradient's elements; above 0, at most 1
  std::uint64_t start_after = 0;  ///< steps of plain all-reduces before the first compressed one
};

/// An element of a gradient that travels.
struct SentElement {
  std::uint32_t index;
  float value;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE::hooks {

using ddp::TopKOptions;

/// A GradientHook: `hooks::TopK compression{{.fraction = 0.01}}; DistributedDataParallel ddp{model, group, options,
/// compression};`. Of each f32 gradient every rank sends the `fraction` of the elements with the largest absolute
/// values, each with its index, to all ranks. What it does not send is added to its next gradient (error feedback).
/// A rank receives 8 fraction ranks bytes for an element: a gradient where that is not below 4, or that has less than
/// 1 / fraction elements, is reduced as it is.
/// Source: S. U. Stich, J.-B. Cordonnier and M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, algorithm 1.
/// - The element that an error keeps back arrives some steps late: use it with a warm-up (start_after).
/// - Elements that are not finite count as the largest ones. At least one travels, so every rank learns of them; those
///   that do not travel are dropped, so that the next step begins without them.
/// - Memory: a copy of each compressed gradient, and what travels, on every rank.
/// - A program that starts again from a checkpoint without state() starts with errors of zero.
/// - With a LossScaler errors have the scale of their step: where the scale halves, they then count twice.
/// Lifetime: one model; outlives its wrapper, if it is a variable. Gradients are in host memory.
class TopK {
 public:
  /// @throws Error (invalid_argument) for a fraction that is not above 0 and at most 1
  explicit TopK(TopKOptions options = {});

  TopK(TopK&&) noexcept = default;
  TopK& operator=(TopK&&) = delete;

  std::string description() const;
  void prepare(std::span<const Parameter> parameters);

  template <class C>
  void reduce(const ddp::GradientBucket<C>& bucket) {
    static_assert(ddp::RunsHostWork<typename C::Stream>,
                  "dtrain: hooks::TopK runs on the host: use it with a backend of host memory");
    static_assert(backend::CanAllGather<C>, "dtrain: hooks::TopK needs all_gather: use topology::Flat");
    const Counts counts = begin_step(bucket.gradients, bucket.channel.size());
    if (counts.sent == 0) {
      bucket.channel.all_reduce(bucket.values, bucket.values, bucket.op, bucket.stream);
      return;
    }
    const std::span<const ddp::BucketGradient> gradients = bucket.gradients;
    bucket.compress([this, gradients]() noexcept { compress(gradients); });
    if (counts.plain != 0) {
      const BufferView plain = buffer_view(std::span(plain_.data(), counts.plain));
      bucket.channel.all_reduce(plain, plain, bucket.op, bucket.stream);
    }
    const auto ranks = static_cast<std::size_t>(bucket.channel.size());
    bucket.channel.all_gather(bytes_of(own_, counts.sent), bytes_of(gathered_, counts.sent * ranks), bucket.stream);
    const float factor = bucket.op == ReduceOp::average ? 1.0F / static_cast<float>(ranks) : 1.0F;
    bucket.compress([this, gradients, ranks, factor]() noexcept { decompress(gradients, ranks, factor); });
  }

  /// What a checkpoint needs, for save_checkpoint and load_checkpoint: all ranks have the same then. Each rank's errors
  /// become their average, which the gradients still get as a whole.
  /// A training that goes on from the file is bit for bit the one that wrote it, on as many ranks; on another number
  /// it goes on with the same errors, if the same gradients are worth compressing there (else loading says so).
  /// Collective, blocking: every rank calls it between the same steps, once the model is wrapped, with the wrapper's
  /// group. Lifetime: the views are those of this object. @throws Error (invalid_argument) for a group of another
  /// number of ranks than the wrapper's, in the next step if none has run; the job's first cause
  template <class Group>
  std::vector<ddp::NamedTensor> state(const Group& group) {
    ranks_.state_is_for("hooks::TopK", group.world_size());
    if (sent_.empty()) choose_compressed(group.world_size());
    errors_.average(group);
    std::vector<ddp::NamedTensor> tensors{{"top_k/steps", tensor_view(steps_)}};
    errors_.add_to(tensors, "top_k");
    return tensors;
  }

 private:
  /// Of a bucket.
  struct Counts {
    std::size_t sent = 0;
    std::size_t plain = 0;
  };

  /// In the first step, makes the memory of what travels. @returns zeros where the bucket is not compressed
  Counts begin_step(std::span<const ddp::BucketGradient> gradients, int ranks);
  void choose_compressed(int ranks);
  /// error += gradient; `own_` gets the largest elements, and `plain_` the gradients that are not compressed.
  void compress(std::span<const ddp::BucketGradient> gradients) noexcept;
  /// Writes the sums of what was gathered, and the reduced `plain_`, to the bucket.
  void decompress(std::span<const ddp::BucketGradient> gradients, std::size_t ranks, float factor) noexcept;

  static BufferView bytes_of(std::vector<ddp::SentElement>& elements, std::size_t count) {
    return buffer_view(std::span(reinterpret_cast<std::uint8_t*>(elements.data()), count * sizeof(ddp::SentElement)));
  }

  TopKOptions options_;
  std::vector<std::size_t> sizes_;     ///< elements of each f32 gradient; 0 for others
  std::vector<std::int64_t> steps_;    ///< of each gradient with elements
  std::vector<std::size_t> sent_;      ///< elements of each gradient; 0: it is not compressed
  ddp::Residuals errors_;              ///< of the compressed ones
  std::vector<ddp::SentElement> own_;  ///< of one bucket, as the two below: the stream runs the buckets in order
  std::vector<ddp::SentElement> gathered_;
  std::vector<float> plain_;
  std::vector<std::uint32_t> indices_;
  ddp::LargestElements largest_;
  ddp::HookRanks ranks_;
};

}  // namespace DTRAIN_NAMESPACE::hooks

#if DTRAIN_DEFINITIONS
#include "dtrain/ddp/hooks/top_k_definitions.hpp"
#endif
