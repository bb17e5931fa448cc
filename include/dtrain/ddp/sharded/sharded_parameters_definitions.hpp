#pragma once
/// @file
/// Definitions of ShardedParameters.

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"
#include "dtrain/ddp/sharded/sharded_parameters.hpp"
#include "dtrain/kernels/conversion.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/float_environment.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

inline bool is_half(DType dtype) noexcept {
  return dtype == DType::f16 || dtype == DType::bf16;
}

}  // namespace detail

DTRAIN_DEFINED void check_sharded_parameters(std::span<const Parameter> parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const TensorView& value = parameters[i].value;
    if ((!detail::is_half(value.dtype) && value.dtype != DType::f32) || value.device.kind != DeviceKind::host) {
      throw_error(Errc::unsupported, "ShardedOptimizer got {}, of {} on {}; it takes f32, f16 and bf16 in host memory",
                  {describe_parameter(i, parameters[i].name), name(value.dtype), to_string(value.device)});
    }
  }
  check_apart(
      parameters, [](const Parameter& parameter) -> const TensorView& { return parameter.value; }, "values");
}

DTRAIN_DEFINED ShardedParameters::ShardedParameters(std::vector<Parameter> parameters, const BucketPlan& plan, int rank,
                                                    int ranks, std::size_t arrays, Rule rule, ReadValue read_value)
    : plan_(&plan),
      parameters_(std::move(parameters)),
      read_value_(std::move(read_value)),
      layout_(shard_layout(plan, gradient_sizes(parameters_), rank, ranks)),
      counts_rest_(rank == 0),
      rule_arrays_(arrays),
      rule_(std::move(rule)),
      square_sums_(rule_.measure ? 2 * parameters_.size() : 0),
      failures_(plan.buckets.size()) {
  const bool has_halves = std::any_of(parameters_.begin(), parameters_.end(), [](const Parameter& parameter) {
    return detail::is_half(parameter.value.dtype);
  });
  arrays_.assign(arrays + (has_halves ? 1 : 0), std::vector<float>(layout_.state_elements));
  for (std::size_t i = 0; read_value_ && i < parameters_.size(); ++i)
    moves_.push_back(read_value_(i).moves);
  load_weights(std::vector<bool>(parameters_.size(), true));
}

DTRAIN_DEFINED void ShardedParameters::renew_values() {
  if (!read_value_) return;
  std::vector<bool> moved(parameters_.size());
  std::vector<Parameter> parameters;
  std::vector<std::uint64_t> moves = moves_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const PresentValue present = read_value_(i);
    if (present.moves == moves_[i]) continue;
    if (parameters.empty()) parameters = parameters_;
    parameters[i].value = present.view;
    moves[i] = present.moves;
    moved[i] = true;
  }
  if (parameters.empty()) return;
  check_sharded_parameters(parameters);
  parameters_ = std::move(parameters);
  moves_ = std::move(moves);
  load_weights(moved);
}

/// 16-bit values to the f32 weights.
DTRAIN_DEFINED void ShardedParameters::load_weights(const std::vector<bool>& wanted) {
  if (arrays_.size() == rule_arrays_) return;
  const kernels::DefaultFloatEnvironment environment;
  for (const BucketShard& shard : layout_.buckets) {
    for (const std::vector<ShardPiece>* pieces : {&shard.own, &shard.rest}) {
      for (const ShardPiece& piece : *pieces) {
        if (!wanted[piece.parameter]) continue;
        const TensorView& value = parameters_[piece.parameter].value;
        kernels::convert(value.dtype, value.data + piece.offset * size_bytes(value.dtype), DType::f32,
                         reinterpret_cast<std::byte*>(arrays_.back().data() + piece.in_state), piece.count);
      }
    }
  }
}

DTRAIN_DEFINED bool detail::share_memory(std::span<const std::span<const std::byte>> memory,
                                         std::span<const Parameter> parameters) {
  using Range = std::pair<std::span<const std::byte>, bool>;  // and whether it is a parameter's
  std::vector<Range> ranges;
  for (const std::span<const std::byte> range : memory) {
    if (!range.empty()) ranges.emplace_back(range, false);
  }
  for (const Parameter& parameter : parameters) {
    if (parameter.value.bytes() != 0) ranges.push_back({{parameter.value.data, parameter.value.bytes()}, true});
  }
  const std::less<> before;
  std::sort(ranges.begin(), ranges.end(),
            [before](const Range& a, const Range& b) { return before(a.first.data(), b.first.data()); });
  std::array<const std::byte*, 2> ends{};  // of each kind's ranges so far, the last
  for (const auto& [range, is_parameter] : ranges) {
    if (before(range.data(), ends[is_parameter ? 0 : 1])) return true;
    const std::byte*& end = ends[is_parameter ? 1 : 0];
    end = std::max(end, range.data() + range.size(), before);
  }
  return false;
}

DTRAIN_DEFINED void ShardedParameters::begin_step() noexcept {
  factor_ = 1;
  own_squares_ = 0;
  common_squares_ = 0;
  std::fill(square_sums_.begin(), square_sums_.end(), 0.0);
}

DTRAIN_DEFINED void ShardedParameters::add_squares(std::size_t bucket, const ShardMemory& memory) noexcept {
  const DType dtype = plan_->buckets[bucket].dtype;
  const BucketShard& part = layout_.buckets[bucket];
  own_squares_ += kernels::sum_of_squares(dtype, memory.block, part.block);
  common_squares_ += kernels::sum_of_squares(dtype, memory.rest, part.rest_count);
}

DTRAIN_DEFINED void ShardedParameters::measure(std::size_t bucket, const ShardMemory& memory) noexcept {
  run_rule(bucket, memory, Pass::measure);
}

DTRAIN_DEFINED void ShardedParameters::update(std::size_t bucket, const ShardMemory& memory, bool stores) noexcept {
  run_rule(bucket, memory, stores ? Pass::update_and_store : Pass::update);
}

DTRAIN_DEFINED void ShardedParameters::run_rule(std::size_t bucket, const ShardMemory& memory, Pass pass) noexcept {
  const DType dtype = plan_->buckets[bucket].dtype;
  const BucketShard& part = layout_.buckets[bucket];
  try {
    for (const ShardPiece& piece : part.own) {
      run_rule_on(piece, dtype, memory.block, pass, true);
    }
    for (const ShardPiece& piece : part.rest) {
      run_rule_on(piece, dtype, memory.rest, pass, counts_rest_);
    }
  } catch (...) {
    failures_[bucket] = std::current_exception();
  }
  if (pass != Pass::measure && failures_[bucket]) keep_weights(bucket, memory);
}

/// In place of gradients, which the other ranks would take for new weights.
DTRAIN_DEFINED void ShardedParameters::keep_weights(std::size_t bucket, const ShardMemory& memory) const noexcept {
  const std::size_t element = element_bytes(bucket);
  const auto keep = [&](const std::vector<ShardPiece>& pieces, std::byte* part) {
    for (const ShardPiece& piece : pieces) {
      kernels::copy_bytes(part + piece.in_part * element,
                          parameters_[piece.parameter].value.data + piece.offset * element, piece.count * element);
    }
  };
  keep(layout_.buckets[bucket].own, memory.block);
  keep(layout_.buckets[bucket].rest, memory.rest);
}

/// In blocks that stay in the first-level cache: the rule gets copies of the weights, since the model's own are still
/// in use, and their new values replace the gradients. copy_bytes instead of std::memcpy: see there.
DTRAIN_DEFINED void ShardedParameters::run_rule_on(const ShardPiece& piece, DType dtype, std::byte* memory, Pass pass,
                                                   bool is_counted) {
  constexpr std::size_t block = 1024;
  alignas(64) std::array<float, block> weights;
  alignas(64) std::array<float, block> gradients;
  std::array<float*, 9> states{};
  const std::size_t element = size_bytes(dtype);
  StepInfo info{steps_ + 1, piece.parameter};
  double* const sums = square_sums_.data() + (measures() ? 2 * piece.parameter : 0);
  if (measures() && pass != Pass::measure) {
    info.norms = {std::sqrt(sums[0]), std::sqrt(sums[1])};
  }
  std::byte* const values = parameters_[piece.parameter].value.data + piece.offset * element;
  for (std::size_t done = 0; done < piece.count; done += block) {
    const std::size_t count = std::min(block, piece.count - done);
    std::byte* const place = memory + (piece.in_part + done) * element;
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      states[i] = arrays_[i].data() + piece.in_state + done;
    }
    float* const current = dtype == DType::f32 ? weights.data() : states[rule_arrays_];
    const float* gradient = reinterpret_cast<const float*>(place);
    if (dtype != DType::f32 || factor_ != 1) {
      const kernels::DefaultFloatEnvironment environment;
      kernels::convert(dtype, place, DType::f32, reinterpret_cast<std::byte*>(gradients.data()), count);
      if (factor_ != 1) {
        multiply_elements(buffer_view(std::span(gradients.data(), count)), factor_);
      }
      gradient = gradients.data();
    }
    if (dtype == DType::f32) {
      kernels::copy_bytes(reinterpret_cast<std::byte*>(current), values + done * element, count * element);
    }
    if (pass == Pass::measure) {
      const ParameterNorms squares = rule_.measure({current, count}, {gradient, count}, states.data(), info);
      if (is_counted) {
        sums[0] += squares.weights;
        sums[1] += squares.update;
      }
      continue;
    }
    rule_.update({current, count}, {gradient, count}, states.data(), info);
    const kernels::DefaultFloatEnvironment environment;
    kernels::convert(DType::f32, reinterpret_cast<const std::byte*>(current), dtype, place, count);
    if (pass == Pass::update_and_store) kernels::copy_bytes(values + done * element, place, count * element);
  }
}

DTRAIN_DEFINED void ShardedParameters::store(std::size_t bucket, std::size_t begin, const std::byte* memory,
                                             std::size_t bytes) const noexcept {
  if (failures_[bucket]) return;
  const PlannedBucket& planned = plan_->buckets[bucket];
  const auto begin_of = [&](std::size_t parameter) { return plan_->offset_of[parameter] - planned.offset; };
  const auto end_of = [&](std::size_t parameter) { return begin_of(parameter) + parameters_[parameter].value.bytes(); };
  const auto last = planned.parameters.end();
  auto parameter =
      std::partition_point(planned.parameters.begin(), last, [&](std::size_t index) { return end_of(index) <= begin; });
  for (; parameter != last && begin_of(*parameter) < begin + bytes; ++parameter) {
    const std::size_t from = std::max(begin_of(*parameter), begin);
    const std::size_t to = std::min(end_of(*parameter), begin + bytes);
    if (from < to) {
      kernels::copy_bytes(parameters_[*parameter].value.data + (from - begin_of(*parameter)), memory + (from - begin),
                          to - from);
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp
