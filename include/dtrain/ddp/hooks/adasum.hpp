#pragma once
/// @file
/// hooks::Adasum: gradient hook that adds orthogonal gradients, averages parallel ones, and interpolates others.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"
#include "dtrain/ddp/hooks/hook_state.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A level of Adasum, as work of a stream. The first group of ranks has vector a, the second group vector b. This rank
/// has the same elements of both vectors.
struct AdasumLevel {
  std::span<const BucketGradient> gradients;
  float* bucket;
  std::size_t begin;  ///< this rank's elements in the bucket, of its group's vector
  std::size_t count;
  const float* received;  ///< the same elements of the other group's vector
  bool is_second;         ///< whether this rank's group is the second one
  double* products;       ///< each gradient's aa, bb, ab; summed over the ranks of both groups between the calls

  /// Writes the products of each gradient that has elements on this rank.
  void multiply() const noexcept;
  /// own = (1 - ab / 2aa) a + (1 - ab / 2bb) b, by gradient
  void combine() const noexcept;
};

/// Memory that grows by larger blocks. Earlier blocks stay, because enqueued work uses them. Allocates nothing once a
/// block is large enough.
template <class T>
class WorkMemory {
 public:
  T* at_least(std::size_t count) {
    if (all_.empty() || all_.back().size() < count) all_.emplace_back(count);
    return all_.back().data();
  }

 private:
  std::vector<std::vector<T>> all_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE::hooks {

/// A GradientHook that adds orthogonal gradients and averages parallel ones.
/// `DistributedDataParallel ddp{model, group, options, hooks::Adasum{}}`. The ranks' gradients a and b
/// of a parameter become (1 - ab / 2aa) a + (1 - ab / 2bb) b: their sum if they are orthogonal, their average if they
/// are equal. Results of pairs, of four ranks, and so on, are combined in the same way. DdpOptions::reduce_op has no
/// effect.
/// Source: S. Maleki et al., "Scaling Distributed Training with Adaptive Summation", arXiv 2006.02924, 2020.
/// - The number of ranks is a power of two, and gradients are f32 in host memory; otherwise the first step fails.
/// - Each rank sends as many bytes as for an all-reduce, in 2 log2(ranks) messages, and log2(ranks) small all-reduces.
/// - Memory: half of each bucket that is larger than all buckets before it.
/// - Gradients have the same bits on all ranks, and in each run with the same buckets and ranks.
/// Lifetime: one model; a variable outlives its wrapper.
/// @ingroup hooks
class Adasum {
 public:
  /// @throws Error (invalid_argument) for a second model
  void prepare(std::span<const Parameter> parameters);
  std::string description() const { return "hooks::Adasum"; }
  /// Two exchanges, an all-reduce and two computations for each doubling.
  static std::uint64_t items_per_bucket(int ranks) noexcept {
    return 5 * static_cast<std::uint64_t>(std::bit_width(static_cast<unsigned>(ranks)));
  }

  template <class C>
  void reduce(const ddp::GradientBucket<C>& bucket) {
    static_assert(ddp::RunsHostWork<typename C::Stream>,
                  "dtrain: hooks::Adasum runs on the host: use it with a backend of host memory");
    static_assert(backend::CanSendRecv<C>, "dtrain: hooks::Adasum needs send_recv (backend/communicator.hpp)");
    const int ranks = bucket.channel.size();
    require_usable(ranks, bucket.values);
    combine(bucket, 1, 0, bucket.values.count);
  }

 private:
  /// @throws Error (unsupported)
  static void require_usable(int ranks, const BufferView& values);

  /// Combines elements [begin, begin + count) of this rank's group of `distance` ranks and of the neighbour group. Each
  /// rank has a partner with the same elements in the neighbour group. Each partner combines one half, repeats the call
  /// for its half with larger groups, and exchanges results with its partner.
  template <class C>
  void combine(const ddp::GradientBucket<C>& bucket, int distance, std::size_t begin, std::size_t count) {
    const int ranks = bucket.channel.size();
    const int rank = bucket.channel.rank();
    if (distance >= ranks) return;
    const bool is_second = (rank / distance) % 2 != 0;
    const int partner = is_second ? rank - distance : rank + distance;
    const std::size_t half = count / 2;
    const BufferView halves[2] = {bucket.part(begin, half), bucket.part(begin + half, count - half)};
    const std::size_t own_begin = is_second ? begin + half : begin;
    const BufferView& own = halves[is_second ? 1 : 0];
    const BufferView& other = halves[is_second ? 0 : 1];

    float* const received = received_.at_least((bucket.values.count + 1) / 2);
    const std::size_t row = 3 * bucket.gradients.size();
    const auto rows = static_cast<std::size_t>(ranks / (2 * distance));
    double* const products = products_.at_least(row * static_cast<std::size_t>(ranks) / 2);
    const std::span<double> table(products, row * rows);  // a row for each pair of groups
    const ddp::AdasumLevel level{bucket.gradients,
                                 reinterpret_cast<float*>(bucket.values.data),
                                 own_begin,
                                 own.count,
                                 received,
                                 is_second,
                                 products + row * static_cast<std::size_t>(rank / (2 * distance))};
    const BufferView from_partner = buffer_view(std::span(received, own.count));
    bucket.channel.enqueue(backend::SendRecv{other, partner, from_partner, partner}, bucket.stream);
    bucket.compress([level, table]() noexcept {
      std::fill(table.begin(), table.end(), 0.0);
      level.multiply();
    });
    bucket.channel.enqueue(backend::AllReduce{buffer_view(table), buffer_view(table), ReduceOp::sum}, bucket.stream);
    bucket.compress([level]() noexcept { level.combine(); });
    combine(bucket, 2 * distance, own_begin, own.count);
    bucket.channel.enqueue(backend::SendRecv{own, partner, other, partner}, bucket.stream);
  }

  ddp::WorkMemory<float> received_;
  ddp::WorkMemory<double> products_;
  bool has_model_ = false;
};

}  // namespace DTRAIN_NAMESPACE::hooks

#if DTRAIN_DEFINITIONS

#include "dtrain/core/error.hpp"
#include "dtrain/kernels/float_environment.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// Calls `act(number, place in the bucket, elements)` for each gradient with elements in the level's range.
template <class F>
void for_each_part(const AdasumLevel& level, F act) noexcept {
  for (std::size_t i = 0; i < level.gradients.size(); ++i) {
    const TensorView& view = level.gradients[i].view;
    if (view.bytes() == 0) continue;  // the gradient is not in the bucket
    const auto first = static_cast<std::size_t>(reinterpret_cast<const float*>(view.data) - level.bucket);
    const std::size_t begin = std::max(first, level.begin);
    const std::size_t end = std::min(first + view.flat().count, level.begin + level.count);
    if (begin < end) act(i, begin, end - begin);
  }
}

}  // namespace detail

DTRAIN_DEFINED void AdasumLevel::multiply() const noexcept {
  const kernels::DefaultFloatEnvironment environment;
  detail::for_each_part(*this, [&](std::size_t i, std::size_t at, std::size_t elements) {
    const float* const own = bucket + at;
    const float* const other = received + (at - begin);
    double* const sums = products + 3 * i;
    sums[is_second ? 1 : 0] = kernels::dot_product<double, 8>(own, own, elements);
    sums[is_second ? 0 : 1] = kernels::dot_product<double, 8>(other, other, elements);
    sums[2] = kernels::dot_product<double, 8>(own, other, elements);
  });
}

DTRAIN_DEFINED void AdasumLevel::combine() const noexcept {
  const kernels::DefaultFloatEnvironment environment;
  detail::for_each_part(*this, [&](std::size_t i, std::size_t at, std::size_t elements) {
    const double* const sums = products + 3 * i;
    const auto factor = [&](double square) { return square == 0 ? 1.0 : 1 - sums[2] / (2 * square); };
    const double own_factor = factor(sums[is_second ? 1 : 0]);
    const double other_factor = factor(sums[is_second ? 0 : 1]);
    for (std::size_t k = 0; k < elements; ++k) {
      float& own = bucket[at + k];
      own = static_cast<float>(own_factor * static_cast<double>(own) +
                               other_factor * static_cast<double>(received[at - begin + k]));
    }
  });
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE::hooks {

DTRAIN_DEFINED void Adasum::prepare(std::span<const Parameter>) {
  if (has_model_) ddp::refuse_second_model("hooks::Adasum");
  has_model_ = true;
}

DTRAIN_DEFINED void Adasum::require_usable(int ranks, const BufferView& values) {
  if (!std::has_single_bit(static_cast<unsigned>(ranks))) {
    throw_error(Errc::unsupported,
                "hooks::Adasum combines the gradients of pairs of ranks, and so needs 1, 2, 4, 8, ... ranks, not {}; "
                "start as many, or leave the hook out",
                {ranks});
  }
  if (values.dtype != DType::f32) {
    throw_error(Errc::unsupported, "hooks::Adasum combines f32 gradients, not {}; leave the hook out, or train in f32",
                {name(values.dtype)});
  }
}

}  // namespace DTRAIN_NAMESPACE::hooks

#endif  // DTRAIN_DEFINITIONS
