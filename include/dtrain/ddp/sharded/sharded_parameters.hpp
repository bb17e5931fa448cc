#pragma once
/// @file
/// ShardedParameters: this rank's share of a model's weights and of its optimizer's state, and their update.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/present_value.hpp"
#include "dtrain/ddp/sharded/optimizer_rule.hpp"
#include "dtrain/ddp/sharded/shard_layout.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// Whether a parameter's value has a byte in one of the ranges, which may overlap. Sorts both: with 20,000 of each,
/// half a million comparisons.
bool share_memory(std::span<const std::span<const std::byte>> memory, std::span<const Parameter> parameters);

}  // namespace detail

/// @throws Error (unsupported) for parameters that are not f32, f16 or bf16 in host memory; (invalid_argument) for two
/// whose values share memory
void check_sharded_parameters(std::span<const Parameter> parameters);

/// update() replaces this rank's part of a bucket's reduced gradients by new weights, in the model's type, and store()
/// copies the gathered weights of all ranks to the model. Weights of f16 and bf16 models are kept in f32, as one more
/// state array. Lifetime: the plan and the parameters' memory outlive it. Threads: update(), measure() and
/// add_squares() on the communication stream, store() of an earlier bucket beside them or there; everything else
/// between.
class ShardedParameters {
 public:
  /// `states[i]` is state array i at the same elements as the weights and the gradients.
  struct Rule {
    std::function<void(std::span<float> weights, std::span<const float> gradients, float* const* states,
                       const StepInfo& info)>
        update;
    std::function<ParameterNorms(std::span<const float> weights, std::span<const float> gradients, float* const* states,
                                 const StepInfo& info)>
        measure;  ///< null for a rule without norms
  };

  /// Allocates the state. @param arrays number of state arrays of the rule @param read_value empty: values stay
  /// @pre check_sharded_parameters(parameters)
  ShardedParameters(std::vector<Parameter> parameters, const BucketPlan& plan, int rank, int ranks, std::size_t arrays,
                    Rule rule, ReadValue read_value = {});

  /// Finds values that have moved, and takes those of 16 bits to f32 again. @throws as ReadValue and
  /// check_sharded_parameters: then nothing has changed
  void renew_values();

  bool is_for(const BucketPlan& plan) const noexcept { return plan_ == &plan; }
  std::size_t buckets() const noexcept { return layout_.buckets.size(); }
  const BucketShard& shard(std::size_t bucket) const noexcept { return layout_.buckets[bucket]; }
  std::size_t element_bytes(std::size_t bucket) const noexcept { return size_bytes(plan_->buckets[bucket].dtype); }

  std::span<const Parameter> parameters() const noexcept { return {parameters_.data(), parameters_.size()}; }
  /// Whether a weight is in that memory; see share_memory.
  bool has_weights_in(std::span<const std::span<const std::byte>> memory) const {
    return detail::share_memory(memory, parameters());
  }
  const ShardLayout& layout() const noexcept { return layout_; }

  /// Updates that were made.
  std::uint64_t steps() const noexcept { return steps_; }
  void set_steps(std::uint64_t steps) noexcept { steps_ = steps; }

  /// Number of state arrays, with that of 16-bit models' weights in f32, which is the last.
  std::size_t arrays() const noexcept { return arrays_.size(); }

  /// The state of a piece of the layout.
  std::span<float> state(std::size_t array, const ShardPiece& piece) noexcept {
    return {arrays_[array].data() + piece.in_state, piece.count};
  }

  /// Bytes of the state of this rank.
  std::size_t state_bytes() const noexcept { return arrays_.size() * layout_.state_elements * sizeof(float); }

  /// Begins a step: gradients count as they are.
  void begin_step() noexcept;

  /// Gradients are multiplied by `factor` before the rule gets them, rounded to f32.
  void set_gradient_factor(double factor) noexcept { factor_ = factor; }

  /// Adds the squares of the bucket's reduced gradients: those of this rank's block, and those that all ranks have.
  void add_squares(std::size_t bucket, const ShardMemory& memory) noexcept;
  double own_squares() const noexcept { return own_squares_; }
  double common_squares() const noexcept { return common_squares_; }

  /// Whether the rule needs norms of whole parameters.
  bool measures() const noexcept { return rule_.measure != nullptr; }

  /// Adds to square_sums() what the rule measures on this rank's part of the bucket. An exception of the rule is kept.
  void measure(std::size_t bucket, const ShardMemory& memory) noexcept;

  /// Two sums for each parameter, of this rank's parts. update() takes them as those of all ranks.
  std::span<double> square_sums() noexcept { return {square_sums_.data(), square_sums_.size()}; }

  /// Replaces this rank's gradients in the bucket by new weights. An exception of the rule is kept; after one, here or
  /// in measure(), by the present weights. @param stores new weights also replace those of the model, up to
  /// where the rule throws
  void update(std::size_t bucket, const ShardMemory& memory, bool stores = false) noexcept;

  /// @throws the exception of the rule in measure() or update() of the bucket
  void throw_if_failed(std::size_t bucket) const {
    if (failures_[bucket]) std::rethrow_exception(failures_[bucket]);
  }

  /// Copies new weights to the model, unless the rule threw: those of `bytes` of the bucket, from byte `begin` on.
  /// @param memory of these bytes
  void store(std::size_t bucket, std::size_t begin, const std::byte* memory, std::size_t bytes) const noexcept;
  /// All of the bucket. @param memory of the whole bucket
  void store(std::size_t bucket, const std::byte* memory) const noexcept {
    store(bucket, 0, memory, plan_->buckets[bucket].bytes);
  }

  /// All buckets are stored.
  void end_step() noexcept { ++steps_; }

 private:
  enum class Pass { measure, update, update_and_store };

  void load_weights(const std::vector<bool>& wanted);
  void run_rule(std::size_t bucket, const ShardMemory& memory, Pass pass) noexcept;
  void keep_weights(std::size_t bucket, const ShardMemory& memory) const noexcept;
  void run_rule_on(const ShardPiece& piece, DType dtype, std::byte* memory, Pass pass, bool is_counted);

  const BucketPlan* plan_;
  std::vector<Parameter> parameters_;
  ReadValue read_value_;
  std::vector<std::uint64_t> moves_;  ///< of the values in parameters_, if these move
  ShardLayout layout_;
  bool counts_rest_;  ///< on one rank, because all ranks have the rest of a bucket
  std::size_t rule_arrays_;
  std::vector<std::vector<float>> arrays_;  ///< the rule's, then the weights in f32 if the model has 16-bit ones
  Rule rule_;
  std::uint64_t steps_ = 0;
  double factor_ = 1;
  std::vector<double> square_sums_;
  double own_squares_ = 0;
  double common_squares_ = 0;
  std::vector<std::exception_ptr> failures_;  ///< of the rule, by bucket: store() of another runs beside update()
};

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS
#include "dtrain/ddp/sharded/sharded_parameters_definitions.hpp"
#endif
