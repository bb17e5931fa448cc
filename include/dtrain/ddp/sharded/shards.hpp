#pragma once
/// @file
/// Shards: this rank's share of a sharded optimizer's weights and state, in any memory. check_sharded_parameters():
/// rejects models that it cannot take.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/sharded/optimizer_rule.hpp"
#include "dtrain/ddp/sharded/shard_layout.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

inline bool is_half(DType dtype) noexcept {
  return dtype == DType::f16 || dtype == DType::bf16;
}

}  // namespace detail

/// @param element of the rule: f32, or f64
/// @throws Error (unsupported) for parameters that are not f32, f16 or bf16 in the memory of `device`, or not f64 for a
/// rule of f64, and for f64 parameters together with others; (invalid_argument) for two parameters whose values share
/// memory
void check_sharded_parameters(std::span<const Parameter> parameters, Device device = {}, DType element = DType::f32);

/// Lifetime: the plan and the parameters' memory outlive the object. Threads: between steps, unless a member says
/// otherwise.
class Shards {
 public:
  /// @param rule_arrays state arrays of the rule @param read_value empty: values do not move
  /// @pre check_sharded_parameters(parameters, device, element)
  Shards(std::vector<Parameter> parameters, const BucketPlan& plan, int rank, int ranks, StateArrays rule_arrays,
         ReadValue read_value, Device device, DType element = DType::f32);

  /// Finds values that have moved, and converts moved 16-bit values to f32 again. @throws as ReadValue and
  /// check_sharded_parameters; an error changes nothing
  void renew_values();

  std::span<const Parameter> parameters() const noexcept { return {parameters_.data(), parameters_.size()}; }
  bool is_for(const BucketPlan& plan) const noexcept { return plan_ == &plan; }
  std::size_t buckets() const noexcept { return layout_.buckets.size(); }
  const BucketShard& shard(std::size_t bucket) const noexcept { return layout_.buckets[bucket]; }
  std::size_t element_bytes(std::size_t bucket) const noexcept { return size_bytes(plan_->buckets[bucket].dtype); }

  const ShardLayout& layout() const noexcept { return layout_; }

  std::uint64_t steps() const noexcept { return __atomic_load_n(&steps_, __ATOMIC_RELAXED); }
  /// The state is that of a checkpoint after so many updates.
  void loaded(std::uint64_t steps) noexcept {
    steps_ = steps;
    is_loaded_ = true;
  }
  bool is_loaded() const noexcept { return is_loaded_; }
  /// Ends a step, and counts its update. Threads: a thread of CUDA may call it while another reads steps().
  void end_step() noexcept { __atomic_fetch_add(&steps_, 1, __ATOMIC_RELAXED); }

  /// Number of state arrays. The last array of a 16-bit model holds its weights in f32.
  std::size_t arrays() const noexcept { return rule_arrays_ + (has_halves_ ? 1 : 0); }

  /// "exp_avg": the name of a state array in checkpoints.
  std::string array_name(std::size_t array) const;

  Device device() const noexcept { return device_; }

  /// Type of the state, which is the rule's: f32, or f64.
  DType element() const noexcept { return element_; }

  /// The state of a piece of the layout.
  virtual TensorView state(std::size_t array, const ShardPiece& piece) noexcept = 0;

  /// Bytes of the state of this rank.
  std::size_t state_bytes() const noexcept { return arrays() * layout_.state_elements * size_bytes(element_); }

 protected:
  Shards(Shards&&) noexcept = default;
  ~Shards() = default;

  /// Converts 16-bit values of the wanted parameters to the f32 weights.
  virtual void load_weights(const std::vector<bool>& wanted) = 0;

  const BucketPlan* plan_;
  std::vector<Parameter> parameters_;
  ShardLayout layout_;
  std::size_t rule_arrays_;
  bool has_halves_;
  StreamHandle writer_{};  ///< the stream on which the program writes values that move (PresentValue::stream)

 private:
  const std::string_view* array_names_;  ///< names of StateArrays
  ReadValue read_value_;
  std::vector<std::uint64_t> moves_;  ///< moves of each value in parameters_; empty if values do not move
  Device device_;
  DType element_;
  std::uint64_t steps_ = 0;
  bool is_loaded_ = false;
};

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/collect_parameters.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED void check_sharded_parameters(std::span<const Parameter> parameters, Device device, DType element) {
  const bool is_on_host = device.kind == DeviceKind::host;
  for (std::size_t i = 1; i < parameters.size() && is_on_host; ++i) {
    const auto is_double = [&](std::size_t k) { return parameters[k].value.dtype == DType::f64; };
    if (is_double(i) == is_double(i - 1)) continue;
    throw_error(Errc::unsupported,
                "ShardedOptimizer got {}, of {}, beside {}, of {}; f64 parameters are updated without others: convert "
                "them, or give the two types a wrapper and an optimizer each",
                {describe_parameter(i, parameters[i].name), name(parameters[i].value.dtype),
                 describe_parameter(i - 1, parameters[i - 1].name), name(parameters[i - 1].value.dtype)});
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const TensorView& value = parameters[i].value;
    const bool is_half = element == DType::f32 && detail::is_half(value.dtype);
    if ((!is_half && value.dtype != element) || value.device != device) {
      const bool is_double = value.dtype == DType::f64 && is_on_host;
      throw_error(Errc::unsupported, "ShardedOptimizer got {}, of {} on {}; {} {}{}",
                  {describe_parameter(i, parameters[i].name), name(value.dtype), to_string(value.device),
                   element == DType::f64 ? "with a rule of doubles it takes f64" : "it takes f32, f16 and bf16",
                   is_on_host ? "in host memory" : "on " + to_string(device),
                   is_double ? " (dtrain::ShardedOptimizer takes f64 with a rule of dtrain::optimizers::f64)" : ""});
    }
  }
  check_apart(
      parameters, [](const Parameter& parameter) -> const TensorView& { return parameter.value; }, "values");
}

DTRAIN_DEFINED Shards::Shards(std::vector<Parameter> parameters, const BucketPlan& plan, int rank, int ranks,
                              StateArrays rule_arrays, ReadValue read_value, Device device, DType element)
    : plan_(&plan),
      parameters_(std::move(parameters)),
      layout_(shard_layout(plan, gradient_sizes(parameters_), rank, ranks)),
      rule_arrays_(rule_arrays.count),
      has_halves_(std::any_of(parameters_.begin(), parameters_.end(),
                              [](const Parameter& each) { return detail::is_half(each.value.dtype); })),
      array_names_(rule_arrays.names),
      read_value_(std::move(read_value)),
      device_(device),
      element_(element) {
  for (std::size_t i = 0; read_value_ && i < parameters_.size(); ++i) {
    const PresentValue present = read_value_(i);
    moves_.push_back(present.moves);
    writer_ = present.stream;
  }
}

DTRAIN_DEFINED std::string Shards::array_name(std::size_t array) const {
  if (array == rule_arrays_) return "master";
  return array_names_ != nullptr ? std::string(array_names_[array]) : "state" + std::to_string(array);
}

DTRAIN_DEFINED void Shards::renew_values() {
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
    writer_ = present.stream;
  }
  if (parameters.empty()) return;
  check_sharded_parameters(parameters, device_, element_);
  parameters_ = std::move(parameters);
  moves_ = std::move(moves);
  load_weights(moved);
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
