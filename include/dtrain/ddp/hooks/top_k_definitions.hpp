#pragma once
/// @file
/// Definitions of hooks::TopK.

#include <algorithm>
#include <limits>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/hooks/top_k.hpp"
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
  if (!sizes_.empty()) {
    throw_error(Errc::invalid_argument, "a hooks::TopK is given to a second model; each model needs its own");
  }
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

DTRAIN_DEFINED TopK::Counts TopK::begin_step(std::span<const ddp::BucketGradient> gradients, int ranks) {
  ranks_.step_is_for("hooks::TopK", ranks);
  if (sent_.empty()) choose_compressed(ranks);
  Counts counts;
  bool starts = true;
  for (const ddp::BucketGradient& gradient : gradients) {
    // One without elements decides nothing: in a bucket of its own its steps are not counted, because the bucket is not
    // reduced.
    if (gradient.view.bytes() == 0) continue;
    const std::size_t sent = sent_[gradient.parameter];
    starts = static_cast<std::uint64_t>(steps_[gradient.parameter]++) >= options_.start_after && starts;
    counts.sent += sent;
    counts.plain += sent == 0 ? gradient.view.flat().count : 0;
  }
  return starts ? counts : Counts{};
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
    if (not_finite == count) {  // there may be more of them, and each would spoil a later step
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
    for (std::size_t rank = 0; rank < ranks; ++rank) {  // in the same order on every rank
      for (const ddp::SentElement& sent : std::span(gathered_).subspan(rank * all + first, count)) {
        if (sent.index < values.size()) values[sent.index] += factor * sent.value;
      }
    }
    first += count;
  }
}

}  // namespace DTRAIN_NAMESPACE::hooks
