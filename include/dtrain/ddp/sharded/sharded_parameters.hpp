#pragma once
/// @file
/// ShardedParameters of a ShardedReduction: this rank's share of weights and optimizer state in host memory, and its
/// update.

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/sharded/optimizer_rule.hpp"
#include "dtrain/ddp/sharded/shard_layout.hpp"
#include "dtrain/ddp/sharded/shards.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// This rank's share of the weights and of the optimizer's state. update() replaces this rank's part of a bucket's
/// reduced gradients by new weights, in the model's type. store() copies the gathered weights of all ranks to the
/// model. Weights of f16 and bf16 models are kept in f32, as one more state array. Lifetime: the plan and the
/// parameters' memory outlive the object. Threads: update(), measure() and add_squares() run on the communication
/// stream; store() of an earlier bucket runs there or during these calls; all other calls run between steps.
class ShardedParameters final : public Shards {
 public:
  /// A rule without its type. `states[i]` is state array i at the same `count` elements as weights and gradients.
  struct Rule {
    /// One that calls `rule`, which it keeps.
    template <OptimizerRule R>
    static Rule of(std::shared_ptr<const R> rule);

    DType element;  ///< type of weights, gradients and states: f32, or f64
    std::function<void(std::byte* weights, const std::byte* gradients, std::byte* const* states, std::size_t count,
                       const StepInfo& info)>
        update;
    std::function<ParameterNorms(const std::byte* weights, const std::byte* gradients, std::byte* const* states,
                                 std::size_t count, const StepInfo& info)>
        measure;  ///< null for a rule without norms
  };

  /// Allocates the state. @param arrays state arrays of the rule @param read_value empty: values do not move
  /// @pre check_sharded_parameters(parameters, {}, rule.element)
  ShardedParameters(std::vector<Parameter> parameters, const BucketPlan& plan, int rank, int ranks, StateArrays arrays,
                    Rule rule, ReadValue read_value = {});

  TensorView state(std::size_t array, const ShardPiece& piece) noexcept override {
    return {state_at(array, piece.in_state), {static_cast<std::int64_t>(piece.count)}, element(), {}};
  }

  /// Begins a step, with 1 as the factor of gradients and 0 as each sum.
  void begin_step() noexcept;

  /// Gradients are multiplied by `factor` before the rule gets them, rounded to f32, or f64.
  void set_gradient_factor(double factor) noexcept { factor_ = factor; }

  /// Adds the squares of the bucket's reduced gradients: this rank's block to own_squares(), the rest to
  /// common_squares().
  void add_squares(std::size_t bucket, const ShardMemory& memory) noexcept;
  double own_squares() const noexcept { return own_squares_; }
  double common_squares() const noexcept { return common_squares_; }

  /// Whether the rule needs norms of whole parameters.
  bool measures() const noexcept { return rule_.measure != nullptr; }

  /// Measures this rank's part of the bucket by the rule, and adds the results to square_sums(). An exception of the
  /// rule is kept.
  void measure(std::size_t bucket, const ShardMemory& memory) noexcept { run_rule(bucket, memory, Pass::measure); }

  /// Two sums for each parameter, over this rank's parts. The caller adds up the sums of all ranks before update().
  std::span<double> square_sums() noexcept { return {square_sums_.data(), square_sums_.size()}; }

  /// Replaces this rank's gradients in the bucket by new weights. If the rule throws, here or in measure(), the
  /// exception is kept, and the present weights replace the gradients.
  /// @param stores whether new weights also replace the model's, up to the elements for which the rule throws
  void update(std::size_t bucket, const ShardMemory& memory, bool stores = false) noexcept {
    run_rule(bucket, memory, stores ? Pass::update_and_store : Pass::update);
  }

  /// @throws the exception of the rule in measure() or update() of the bucket
  void throw_if_failed(std::size_t bucket) const {
    if (failures_[bucket]) std::rethrow_exception(failures_[bucket]);
  }

  /// Copies the new weights in bytes [begin, begin + bytes) of the bucket to the model, unless the rule threw.
  /// @param memory of these bytes
  void store(std::size_t bucket, std::size_t begin, const std::byte* memory, std::size_t bytes) const noexcept;
  /// Copies the new weights of the whole bucket. @param memory of the bucket
  void store(std::size_t bucket, const std::byte* memory) const noexcept {
    store(bucket, 0, memory, plan_->buckets[bucket].bytes);
  }

 private:
  enum class Pass { measure, update, update_and_store };

  void load_weights(const std::vector<bool>& wanted) override;
  void run_rule(std::size_t bucket, const ShardMemory& memory, Pass pass) noexcept;
  void keep_weights(std::size_t bucket, const ShardMemory& memory) const noexcept;
  void run_rule_on(const ShardPiece& piece, DType dtype, std::byte* memory, Pass pass, bool is_counted);
  std::byte* state_at(std::size_t array, std::size_t i) noexcept {
    return arrays_[array].data() + i * size_bytes(element());
  }

  bool counts_rest_;                            ///< true on rank 0 only, because all ranks have the rest of a bucket
  std::vector<std::vector<std::byte>> arrays_;  ///< the rule's arrays, then the f32 weights of a 16-bit model
  Rule rule_;
  double factor_ = 1;
  std::vector<double> square_sums_;
  double own_squares_ = 0;
  double common_squares_ = 0;
  std::vector<std::exception_ptr> failures_;  ///< the rule's, by bucket: store() and update() run for different buckets
};

template <OptimizerRule R>
ShardedParameters::Rule ShardedParameters::Rule::of(std::shared_ptr<const R> rule) {
  using E = RuleElement<R>;
  const auto elements = []<class Byte>(Byte* bytes, std::size_t count) {
    return std::span(reinterpret_cast<std::conditional_t<std::is_const_v<Byte>, const E, E>*>(bytes), count);
  };
  const auto arrays_of = [](std::byte* const* states) {
    std::array<E*, state_arrays<R> + 1> arrays{};
    for (std::size_t i = 0; i < state_arrays<R>; ++i)
      arrays[i] = reinterpret_cast<E*>(states[i]);
    return arrays;
  };
  Rule erased{dtype_of<E>::value, {}, {}};
  erased.update = [=](std::byte* weights, const std::byte* gradients, std::byte* const* states, std::size_t count,
                      const StepInfo& info) {
    apply_rule(*rule, elements(weights, count), elements(gradients, count), arrays_of(states).data(), info);
  };
  if constexpr (NormedRule<R>) {
    erased.measure = [=](const std::byte* weights, const std::byte* gradients, std::byte* const* states,
                         std::size_t count, const StepInfo& info) {
      return measure_rule(*rule, elements(weights, count), elements(gradients, count), arrays_of(states).data(), info);
    };
  }
  return erased;
}

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <cmath>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"
#include "dtrain/kernels/conversion.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/float_environment.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED ShardedParameters::ShardedParameters(std::vector<Parameter> parameters, const BucketPlan& plan, int rank,
                                                    int ranks, StateArrays arrays, Rule rule, ReadValue read_value)
    : Shards(std::move(parameters), plan, rank, ranks, arrays, std::move(read_value), {}, rule.element),
      counts_rest_(rank == 0),
      arrays_(this->arrays(), std::vector<std::byte>(layout_.state_elements * size_bytes(element()))),
      rule_(std::move(rule)),
      square_sums_(rule_.measure ? 2 * parameters_.size() : 0),
      failures_(plan.buckets.size()) {
  load_weights(std::vector<bool>(parameters_.size(), true));
}

DTRAIN_DEFINED void ShardedParameters::load_weights(const std::vector<bool>& wanted) {
  if (arrays_.size() == rule_arrays_) return;
  const kernels::DefaultFloatEnvironment environment;
  for (const BucketShard& shard : layout_.buckets) {
    for (const std::vector<ShardPiece>* pieces : {&shard.own, &shard.rest}) {
      for (const ShardPiece& piece : *pieces) {
        if (!wanted[piece.parameter]) continue;
        const TensorView& value = parameters_[piece.parameter].value;
        kernels::convert(value.dtype, value.data + piece.offset * size_bytes(value.dtype), DType::f32,
                         state_at(rule_arrays_, piece.in_state), piece.count);
      }
    }
  }
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

/// Replaces gradients by the present weights: other ranks would take the gradients for new weights.
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

/// Runs the rule in blocks that stay in the first-level cache. The rule gets copies of the weights, because the model's
/// weights are still in use; the new weights replace the gradients. For copy_bytes see its comment.
DTRAIN_DEFINED void ShardedParameters::run_rule_on(const ShardPiece& piece, DType dtype, std::byte* memory, Pass pass,
                                                   bool is_counted) {
  alignas(64) std::array<std::byte, 4096> weights;
  alignas(64) std::array<std::byte, weights.size()> gradients;
  const std::size_t block = weights.size() / size_bytes(rule_.element);
  std::array<std::byte*, 9> states{};
  const std::size_t element = size_bytes(dtype);
  const bool is_half = detail::is_half(dtype);
  StepInfo info{steps() + 1, piece.parameter};
  double* const sums = square_sums_.data() + (measures() ? 2 * piece.parameter : 0);
  if (measures() && pass != Pass::measure) {
    info.norms = {std::sqrt(sums[0]), std::sqrt(sums[1])};
  }
  std::byte* const values = parameters_[piece.parameter].value.data + piece.offset * element;
  for (std::size_t done = 0; done < piece.count; done += block) {
    const std::size_t count = std::min(block, piece.count - done);
    std::byte* const place = memory + (piece.in_part + done) * element;
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      states[i] = state_at(i, piece.in_state + done);
    }
    std::byte* const current = is_half ? states[rule_arrays_] : weights.data();
    const std::byte* gradient = place;
    if (is_half || factor_ != 1) {
      const kernels::DefaultFloatEnvironment environment;
      kernels::convert(dtype, place, rule_.element, gradients.data(), count);
      if (factor_ != 1) {
        multiply_elements({gradients.data(), count, rule_.element, {}}, factor_);
      }
      gradient = gradients.data();
    }
    if (!is_half) {
      kernels::copy_bytes(current, values + done * element, count * element);
    }
    if (pass == Pass::measure) {
      const ParameterNorms squares = rule_.measure(current, gradient, states.data(), count, info);
      if (is_counted) {
        sums[0] += squares.weights;
        sums[1] += squares.update;
      }
      continue;
    }
    rule_.update(current, gradient, states.data(), count, info);
    const kernels::DefaultFloatEnvironment environment;
    kernels::convert(rule_.element, current, dtype, place, count);
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

#endif  // DTRAIN_DEFINITIONS
