#pragma once
/// @file
/// hooks::TopK: gradient hook that sends the largest elements of each gradient. LargestElements: their selection by
/// radix.

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
#include "dtrain/ddp/hooks/hook_state.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Radix selection by the bits of the absolute value, in three passes over the values. Threads: one at a time.
class LargestElements {
 public:
  /// Writes the indices of the k values with the largest absolute values, in ascending order; among equal values the
  /// first are chosen. A NaN is larger than infinity.
  /// @param values at most 2^32 - 1
  /// @param indices at least `k`; @param k at most the number of values
  void select(std::span<const float> values, std::size_t k, std::uint32_t* indices) noexcept;

 private:
  static constexpr unsigned low_bits = 15;

  /// @returns the digit of the k-th largest value; k becomes that value's place among the values of the digit
  std::uint32_t digit_of(std::size_t& k) const noexcept;

  std::vector<std::uint32_t> counts_ = std::vector<std::uint32_t>(std::size_t{1} << 16);
};

/// Options of hooks::TopK. The same on every rank.
/// @ingroup hooks
struct TopKOptions {
  double fraction = 0.01;         ///< share of a gradient's elements; above 0, at most 1
  std::uint64_t start_after = 0;  ///< steps of plain all-reduces before the first compressed one
};

/// An element of a gradient that a rank sends.
struct SentElement {
  std::uint32_t index;
  float value;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE::hooks {

using ddp::TopKOptions;

/// A GradientHook that sends the largest elements of each gradient.
/// `hooks::TopK hook{{.fraction = 0.01}}; DistributedDataParallel ddp{model, group, options, std::ref(hook)};`.
/// Every rank sends a `fraction` of the elements of each f32 gradient to all ranks: the elements with the largest
/// absolute values, each with its index. Elements that a rank does not send are added to its next gradient (error
/// feedback).
/// A rank receives 8 * fraction * ranks bytes for each element. A gradient is reduced as it is if 8 * fraction * ranks
/// is 4 or more, or if it has less than 1 / fraction elements.
/// Source: S. U. Stich, J.-B. Cordonnier and M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, algorithm 1.
/// - Elements that are not sent at once arrive some steps late: use a warm-up (start_after).
/// - Elements that are not finite count as the largest ones. At least one of them is sent, so that every rank sees it;
///   any that are not sent are dropped before the next step.
/// - Memory on every rank: a copy of each compressed gradient, and the elements sent and received.
/// - A program that starts again from a checkpoint without state() starts with residuals of zero.
/// - With a LossScaler residuals have the scale of their step; after the scale halves, they count twice.
/// Lifetime: one model. A hook given as std::ref(hook) outlives its wrapper. Gradients are in host memory.
/// @ingroup hooks
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
    const SentCounts counts = begin_step(bucket.gradients, bucket.channel.size());
    if (counts.sent == 0) {
      bucket.channel.enqueue(backend::AllReduce{bucket.values, bucket.values, bucket.op}, bucket.stream);
      return;
    }
    const std::span<const ddp::BucketGradient> gradients = bucket.gradients;
    bucket.compress([this, gradients]() noexcept { compress(gradients); });
    if (counts.plain != 0) {
      const BufferView plain = buffer_view(std::span(plain_.data(), counts.plain));
      bucket.channel.enqueue(backend::AllReduce{plain, plain, bucket.op}, bucket.stream);
    }
    const auto ranks = static_cast<std::size_t>(bucket.channel.size());
    const BufferView gathered = bytes_of(gathered_, counts.sent * ranks);
    bucket.channel.enqueue(backend::AllGather{bytes_of(own_, counts.sent), gathered}, bucket.stream);
    const float factor = bucket.op == ReduceOp::average ? 1.0F / static_cast<float>(ranks) : 1.0F;
    bucket.compress([this, gradients, ranks, factor]() noexcept { decompress(gradients, ranks, factor); });
  }

  /// State for save_checkpoint and load_checkpoint, with the conditions and errors of Cast::state(). On another number
  /// of ranks the residuals are the same if the same gradients are compressed there; otherwise loading throws.
  /// Collective, blocking. Lifetime: the views refer to this object.
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
  /// Elements of a bucket that are sent, and that are reduced as they are.
  struct SentCounts {
    std::size_t sent = 0;
    std::size_t plain = 0;
  };

  /// Counts a step; the first step also allocates. @returns zeros if the step does not compress the bucket
  SentCounts begin_step(std::span<const ddp::BucketGradient> gradients, int ranks);
  void choose_compressed(int ranks);
  /// error += gradient; `own_` gets the largest elements, and `plain_` the gradients that are not compressed.
  void compress(std::span<const ddp::BucketGradient> gradients) noexcept;
  /// Writes the sums of the gathered elements, and the reduced `plain_`, to the bucket.
  void decompress(std::span<const ddp::BucketGradient> gradients, std::size_t ranks, float factor) noexcept;

  static BufferView bytes_of(std::vector<ddp::SentElement>& elements, std::size_t count) {
    return buffer_view(std::span(reinterpret_cast<std::uint8_t*>(elements.data()), count * sizeof(ddp::SentElement)));
  }

  TopKOptions options_;
  std::vector<std::size_t> sizes_;     ///< elements of each f32 gradient; 0 for others
  std::vector<std::int64_t> steps_;    ///< steps of each gradient with elements
  std::vector<std::size_t> sent_;      ///< elements of each gradient; 0: it is not compressed
  ddp::Residuals errors_;              ///< errors of the compressed gradients
  std::vector<ddp::SentElement> own_;  ///< one bucket's, as gathered_ and plain_: the stream runs buckets in order
  std::vector<ddp::SentElement> gathered_;
  std::vector<float> plain_;
  std::vector<std::uint32_t> indices_;
  ddp::LargestElements largest_;
  ddp::HookRanks ranks_;
};

}  // namespace DTRAIN_NAMESPACE::hooks

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/kernels/float_environment.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"

namespace DTRAIN_NAMESPACE::hooks {

DTRAIN_DEFINED TopK::TopK(TopKOptions options) : options_(options) {
  if (!(options.fraction > 0 && options.fraction <= 1)) {
    throw_error(Errc::invalid_argument, "hooks::TopK has fraction {}; it is above 0 and at most 1", {options.fraction});
  }
}

DTRAIN_DEFINED std::string TopK::description() const {
  return format_text("hooks::TopK with fraction {}, start_after {}", {options_.fraction, options_.start_after});
}

DTRAIN_DEFINED void TopK::prepare(std::span<const Parameter> parameters) {
  if (!sizes_.empty()) ddp::refuse_second_model("hooks::TopK");
  for (const Parameter& parameter : parameters) {
    const std::size_t count = parameter.gradient.flat().count;
    sizes_.push_back(parameter.gradient.dtype == DType::f32 ? count : 0);
  }
  steps_.resize(sizes_.size());
}

DTRAIN_DEFINED void TopK::choose_compressed(int ranks) {
  sent_.resize(sizes_.size());
  std::vector<std::size_t> kept(sizes_.size());
  std::size_t sent = 0;
  std::size_t plain = 0;
  std::size_t most = 0;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    const auto count = static_cast<std::size_t>(options_.fraction * static_cast<double>(sizes_[i]));
    const bool saves = 2 * count * static_cast<std::size_t>(ranks) < sizes_[i];
    if (!saves || count == 0 || sizes_[i] > std::numeric_limits<std::uint32_t>::max()) {
      plain += sizes_[i];
      continue;
    }
    sent_[i] = count;
    kept[i] = sizes_[i];
    sent += count;
    most = std::max(most, count);
  }
  errors_.allocate(kept);
  own_.resize(sent);
  gathered_.resize(sent * static_cast<std::size_t>(ranks));
  plain_.resize(plain);
  indices_.resize(most);
}

DTRAIN_DEFINED TopK::SentCounts TopK::begin_step(std::span<const ddp::BucketGradient> gradients, int ranks) {
  ranks_.step_is_for("hooks::TopK", ranks);
  if (sent_.empty()) choose_compressed(ranks);
  SentCounts counts;
  bool starts = true;
  for (const ddp::BucketGradient& gradient : gradients) {
    // A gradient without elements is skipped: its steps are not counted if its bucket is empty, because an empty bucket
    // is not reduced.
    if (gradient.view.bytes() == 0) continue;
    const std::size_t sent = sent_[gradient.parameter];
    starts = static_cast<std::uint64_t>(steps_[gradient.parameter]++) >= options_.start_after && starts;
    counts.sent += sent;
    counts.plain += sent == 0 ? gradient.view.flat().count : 0;
  }
  return starts ? counts : SentCounts{};
}

DTRAIN_DEFINED void TopK::compress(std::span<const ddp::BucketGradient> gradients) noexcept {
  const kernels::DefaultFloatEnvironment environment;
  ddp::SentElement* to = own_.data();
  float* plain = plain_.data();
  for (const ddp::BucketGradient& gradient : gradients) {
    const std::size_t count = sent_[gradient.parameter];
    const std::span<float> error = errors_.of(gradient.parameter);
    const std::span<const float> values = gradient.view.as<float>();
    if (count == 0) {
      plain = std::copy(values.begin(), values.end(), plain);
      continue;
    }
    std::transform(values.begin(), values.end(), error.begin(), error.begin(),
                   [](float value, float kept) { return value + kept; });
    largest_.select(error, count, indices_.data());
    std::size_t not_finite = 0;
    for (std::size_t k = 0; k < count; ++k) {
      *to = {indices_[k], std::exchange(error[indices_[k]], 0.0F)};
      not_finite += kernels::is_finite(to++->value) ? 0 : 1;
    }
    if (not_finite == count) {  // drop the others, which would make a later step not finite
      std::replace_if(
          error.begin(), error.end(), [](float kept) { return !kernels::is_finite(kept); }, 0.0F);
    }
  }
}

DTRAIN_DEFINED void TopK::decompress(std::span<const ddp::BucketGradient> gradients, std::size_t ranks,
                                     float factor) noexcept {
  const kernels::DefaultFloatEnvironment environment;
  std::size_t all = 0;
  for (const ddp::BucketGradient& gradient : gradients) {
    all += sent_[gradient.parameter];
  }
  const float* plain = plain_.data();
  std::size_t first = 0;
  for (const ddp::BucketGradient& gradient : gradients) {
    const std::size_t count = sent_[gradient.parameter];
    const std::span<float> values = gradient.view.as<float>();
    if (count == 0) {
      std::copy_n(plain, values.size(), values.begin());
      plain += values.size();
      continue;
    }
    std::fill(values.begin(), values.end(), 0.0F);
    for (std::size_t rank = 0; rank < ranks; ++rank) {  // the same order on every rank
      for (const ddp::SentElement& sent : std::span(gathered_).subspan(rank * all + first, count)) {
        if (sent.index < values.size()) values[sent.index] += factor * sent.value;
      }
    }
    first += count;
  }
}

}  // namespace DTRAIN_NAMESPACE::hooks

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

inline std::uint32_t absolute_bits(float value) noexcept {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU;
}

}  // namespace detail

DTRAIN_DEFINED std::uint32_t LargestElements::digit_of(std::size_t& k) const noexcept {
  std::size_t digit = counts_.size() - 1;
  while (counts_[digit] < k) {
    k -= counts_[digit];
    --digit;
  }
  return static_cast<std::uint32_t>(digit);
}

DTRAIN_DEFINED void LargestElements::select(std::span<const float> values, std::size_t k,
                                            std::uint32_t* indices) noexcept {
  if (k == 0) return;
  std::fill(counts_.begin(), counts_.end(), 0U);
  for (const float value : values) {
    ++counts_[detail::absolute_bits(value) >> low_bits];
  }
  std::size_t left = k;
  const std::uint32_t high = digit_of(left);
  std::fill(counts_.begin(), counts_.end(), 0U);
  for (const float value : values) {
    const std::uint32_t bits = detail::absolute_bits(value);
    if (bits >> low_bits == high) ++counts_[bits & ((1U << low_bits) - 1)];
  }
  const std::uint32_t least = (high << low_bits) + digit_of(left);  // `left` values of these bits are chosen
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t bits = detail::absolute_bits(values[i]);
    if (bits > least || (bits == least && left != 0)) {
      left -= bits == least ? 1 : 0;
      *indices++ = static_cast<std::uint32_t>(i);
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
