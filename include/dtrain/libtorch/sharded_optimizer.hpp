#pragma once
/// @file
/// libtorch::ShardedOptimizer: a LibTorch optimizer whose state is divided among the ranks. RuleOf: its options as
/// dtrain's rules.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <dtrain/dtrain.hpp>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "dtrain/libtorch/grouped_rule.hpp"
#include "dtrain/libtorch/optimizer_state.hpp"

namespace DTRAIN_NAMESPACE::libtorch {

namespace detail {

[[noreturn]] inline void refuse_option(const std::string& optimizer, const std::string& option) {
  throw Error(Errc::unsupported, "libtorch::ShardedOptimizer has no " + option + ", which the options of this " +
                                     optimizer + " ask for; leave it out, or use " + optimizer + " without sharding");
}

/// `Rule<E>`, the rule of a LibTorch optimizer class for elements of E, and `of<E>(options)`, which reads the options
/// of one parameter group.
template <class Optimizer>
struct RuleOf {
  static_assert(sizeof(Optimizer) == 0,
                "dtrain: libtorch::ShardedOptimizer shards torch::optim::AdamW, Adam, SGD, RMSprop and Adagrad: use "
                "one of them, or this optimizer without sharding");
};

template <class E, template <class> class Rule, class Options>
Rule<E> adam_rule(const std::string& optimizer, const Options& options) {
  if (options.amsgrad()) refuse_option(optimizer, "amsgrad");
  const auto [beta1, beta2] = options.betas();
  return {E(options.lr()), E(beta1), E(beta2), E(options.eps()), E(options.weight_decay())};
}

template <>
struct RuleOf<torch::optim::AdamW> {
  template <class E>
  using Rule = optimizers::BasicAdamW<E>;
  template <class E>
  static Rule<E> of(const torch::optim::OptimizerOptions& options) {
    return adam_rule<E, Rule>("torch::optim::AdamW", static_cast<const torch::optim::AdamWOptions&>(options));
  }
};

template <>
struct RuleOf<torch::optim::Adam> {
  template <class E>
  using Rule = optimizers::BasicAdam<E>;
  template <class E>
  static Rule<E> of(const torch::optim::OptimizerOptions& options) {
    return adam_rule<E, Rule>("torch::optim::Adam", static_cast<const torch::optim::AdamOptions&>(options));
  }
};

template <>
struct RuleOf<torch::optim::SGD> {
  template <class E>
  using Rule = optimizers::BasicMomentum<E>;
  template <class E>
  static Rule<E> of(const torch::optim::OptimizerOptions& given) {
    const auto& options = static_cast<const torch::optim::SGDOptions&>(given);
    if (options.dampening() != 0) refuse_option("torch::optim::SGD", "dampening");
    return {E(options.lr()), E(options.momentum()), E(options.weight_decay()), options.nesterov()};
  }
};

template <>
struct RuleOf<torch::optim::RMSprop> {
  template <class E>
  using Rule = optimizers::BasicRmsProp<E>;
  template <class E>
  static Rule<E> of(const torch::optim::OptimizerOptions& given) {
    const auto& options = static_cast<const torch::optim::RMSpropOptions&>(given);
    if (options.centered()) refuse_option("torch::optim::RMSprop", "centered");
    return {E(options.lr()), E(options.alpha()), E(options.eps()), E(options.weight_decay()), E(options.momentum())};
  }
};

template <>
struct RuleOf<torch::optim::Adagrad> {
  template <class E>
  using Rule = optimizers::BasicAdagrad<E>;
  template <class E>
  static Rule<E> of(const torch::optim::OptimizerOptions& given) {
    const auto& options = static_cast<const torch::optim::AdagradOptions&>(given);
    return {E(options.lr()), E(options.lr_decay()), E(options.weight_decay()), E(options.initial_accumulator_value()),
            E(options.eps())};
  }
};

/// For an optimizer that is to be sharded. @throws Error (unsupported) if it has made updates, whose state would be
/// lost
template <class Optimizer>
void require_no_updates(Optimizer& optimizer) {
  using Of = StateOf<Optimizer>;
  for (const auto& each : optimizer.state()) {
    bool has_updates = std::is_same_v<Optimizer, torch::optim::SGD>;  // counts nothing; its first update makes a state
    Of::state(static_cast<typename Of::State&>(*each.second), [&](const char*, [[maybe_unused]] auto& value) {
      if constexpr (std::is_same_v<decltype(value), std::int64_t&>) has_updates = value > 0;
    });
    if (!has_updates) continue;
    throw Error(Errc::unsupported, "a ShardedOptimizer was given a " + class_of(optimizer) +
                                       " that has made updates already, and would begin without their state; load a "
                                       "checkpoint of a ShardedOptimizer into it, or go on without sharding");
  }
}

}  // namespace detail

/// The rules of an optimizer class O: its own are of floats, and `doubles` of doubles for Double parameters.
template <class O>
struct ModuleRule : GroupedRule<typename detail::RuleOf<O>::template Rule<float>> {
  GroupedRule<typename detail::RuleOf<O>::template Rule<double>> doubles;
};

/// Updates a module as a LibTorch optimizer does, with 1 / ranks of the optimizer's state on each rank (dtrain's
/// ShardedOptimizer):
///
///   torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(3e-4));
///   dtrain::libtorch::ShardedOptimizer optimizer{ddp, adamw};
///   ddp.backward(loss, optimizer);  // in place of ddp.backward(loss) and adamw.step()
///
/// `adamw` gives the parameter groups and their options, which schedulers may change between steps. `adamw.step()` is
/// not called, so that `adamw` keeps no state; that of torch::optim::Adagrad's constructor is removed. O is
/// torch::optim::AdamW, Adam, SGD, RMSprop or Adagrad.
/// - It begins without a state: an optimizer that has made updates, or was loaded after some, is rejected. So is one
/// with a parameter that needs a gradient and is not of `ddp`, which nothing would update.
/// - A parameter without a gradient on any rank (DdpOptions::allow_unused_parameters), or in no group, keeps its value
/// and number of updates.
/// - Half and BFloat16 parameters have state in f32, and a copy of their values in f32. Double parameters have state in
/// f64; such a wrapper trains no parameters of other types.
/// - After a step no parameter has a .grad: dtrain has used the gradients' memory for the new values.
/// - ShardedOptions{.stage = 2} divides the gradients as well. A pass makes each .grad in
/// LibTorch's memory, as without dtrain. dtrain copies each gradient into its bucket, and the parameter has no .grad
/// afterwards. A rank keeps its part of the reduced gradients, which no .grad shows. Under no_sync() .grad has this
/// rank's own sum. The wrapper rejects steps without such an optimizer.
///
/// On a GPU, O is AdamW, Adam or SGD, whose update is dtrain's kernel with the bits of the host's update. The host
/// waits for nothing, except: in the first step, in an elastic job, in a step that inspects the gradients, when 16-bit
/// values have moved, and with DdpOptions::allow_unused_parameters for which parameters other ranks used
/// (GraphPolicy::static_graph: in the first step only). A captured step is rejected, and Double parameters are.
///
/// - Values that torch::load or set_data moved are found again; moved Half and BFloat16 values are converted to f32
/// again.
///
/// Lifetime: `adamw` outlives the optimizer, which makes steps as long as `ddp` exists. Threads: the thread that
/// trains.
/// @ingroup libtorch
template <class O, class C>
class ShardedOptimizer {
  static_assert(
      !dtrain::ddp::detail::is_on_device<C> || dtrain::ddp::detail::RuleFor<ModuleRule<O>, C>,
      "dtrain: on a GPU libtorch::ShardedOptimizer shards torch::optim::AdamW, Adam and SGD: use one of them, "
      "or this optimizer without sharding");

 public:
  /// Collective, blocking: every rank constructs the optimizer between the same steps, with the same groups. Allocates
  /// the state.
  /// @throws Error (unsupported) for Double parameters together with others, amsgrad, dampening and centered, for an
  /// optimizer that has made updates, and for early_update; (invalid_argument) for an
  /// optimizer of other parameters than the wrapper's; as dtrain::ShardedOptimizer
  template <class Ddp>
  ShardedOptimizer(Ddp& ddp, O& options, const ShardedOptions& sharding = {})
      : options_(options),
        parameters_(ddp.trained()),
        updates_(std::make_shared<std::vector<ParameterUpdates>>(parameters_.size())),
        sharded_(wrapped(ddp, options, rule_of(options), sharding), rule_of(options), sharding) {
    // Adagrad's constructor has made the whole state, which each rank would keep.
    if constexpr (std::is_same_v<O, torch::optim::Adagrad>) options.state().clear();
  }

  O& options() noexcept { return options_; }

  /// Number of updates; bytes of state and of dtrain's gradients on this rank.
  std::uint64_t steps() const noexcept { return sharded_.steps(); }
  std::size_t state_bytes() const noexcept { return sharded_.state_bytes(); }
  std::size_t gradient_bytes() const noexcept { return sharded_.gradient_bytes(); }

  /// dtrain's optimizer, for DistributedDataParallel::backward and checkpoints.
  dtrain::ShardedOptimizer<ModuleRule<O>, C>& sharded() noexcept { return sharded_; }

  /// Begins a step with the present options. The step updates the parameters for which `used` has a 1; empty: all.
  /// @throws Error (unsupported) as the constructor
  void begin_step(const std::vector<std::int32_t>& used) {
    sharded_.rule().rules = rules_of<float>(options_);
    sharded_.rule().doubles.rules = rules_of<double>(options_);
    take_groups();
    set_used(used);
    steps_before_ = sharded_.steps();
  }

  void set_used(const std::vector<std::int32_t>& used) {
    for (std::size_t i = 0; i < updates_->size(); ++i) {
      (*updates_)[i].has_gradient = used.empty() || used[i] != 0;
    }
  }

  /// Counts the step's updates, unless its inspection rejected them.
  void end_step() {
    if (sharded_.steps() == steps_before_) return;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      ParameterUpdates& parameter = (*updates_)[i];
      if (!parameter.is_updated()) continue;
      ++parameter.count;
      torch::autograd::impl::bump_version(parameters_[i]);
    }
  }

  /// The parameters' numbers of updates, in the order of the module.
  std::vector<std::int64_t> updates() const {
    std::vector<std::int64_t> updates;
    for (const ParameterUpdates& parameter : *updates_)
      updates.push_back(parameter.count);
    return updates;
  }
  void set_updates(const std::vector<std::int64_t>& updates) {
    for (std::size_t i = 0; i < updates.size(); ++i)
      updates_->at(i).count = updates[i];
  }

 private:
  /// The wrapper, after the checks of the stage and the parameters. @param rule of the options
  template <class Ddp>
  static auto& wrapped(Ddp& ddp, O& options, const ModuleRule<O>& rule, const ShardedOptions& sharding) {
    detail::require_no_updates(options);
    require_parameters_of(ddp.trained(), options);
    ddp.require_dense("libtorch::ShardedOptimizer");
    if (sharding.early_update) {
      throw Error(Errc::unsupported,
                  "libtorch::ShardedOptimizer has no early_update: autograd may use a weight after its gradient "
                  "is ready; leave it out");
    }
    dtrain::ddp::require_valid(sharding);
    const std::span<const Parameter> parameters = ddp.wrapped().parameters();
    const Device device = dtrain::ddp::DriverAccess::of(ddp.wrapped()).stream.ref().device();
    dtrain::ddp::check_sharded_parameters(parameters, device, decltype(sharded_)::element_of(parameters));
    if (sharding.divides_gradients()) {  // agreed on before it communicates
      decltype(sharded_)::agree_on_kernels(ddp.wrapped(), rule, sharding);
      ddp.unbind_gradients();
    }
    return ddp.wrapped();
  }

  ModuleRule<O> rule_of(O& options) const {
    return {{rules_of<float>(options), updates_}, {rules_of<double>(options), updates_}};
  }

  template <class E>
  static auto rules_of(O& options) {
    std::vector<typename detail::RuleOf<O>::template Rule<E>> rules;
    for (const torch::optim::OptimizerParamGroup& group : options.param_groups())
      rules.push_back(detail::RuleOf<O>::template of<E>(group.options()));
    return rules;
  }

  /// @throws Error (invalid_argument) if the optimizer has another parameter that needs a gradient
  static void require_parameters_of(const std::vector<torch::Tensor>& trained, const O& options) {
    std::unordered_set<const void*> known;
    for (const torch::Tensor& parameter : trained)
      known.insert(parameter.unsafeGetTensorImpl());
    for (std::size_t group = 0; group < options.param_groups().size(); ++group) {
      const std::vector<torch::Tensor>& parameters = options.param_groups()[group].params();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (!parameters[i].requires_grad() || known.count(parameters[i].unsafeGetTensorImpl()) != 0) continue;
        throw Error(Errc::invalid_argument, "parameter " + std::to_string(i) + " of group " + std::to_string(group) +
                                                " of a sharded optimizer is not of its DistributedDataParallel, and "
                                                "would never be updated; wrap its module too, or give it to another "
                                                "optimizer");
      }
    }
  }

  void take_groups() {
    std::unordered_map<const void*, std::size_t> group_of;
    for (std::size_t group = 0; group < options_.param_groups().size(); ++group) {
      for (const torch::Tensor& parameter : options_.param_groups()[group].params())
        group_of.emplace(parameter.unsafeGetTensorImpl(), group);
    }
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto found = group_of.find(parameters_[i].unsafeGetTensorImpl());
      (*updates_)[i].group = found == group_of.end() ? ParameterUpdates::no_group : found->second;
    }
  }

  O& options_;
  std::vector<torch::Tensor> parameters_;
  std::shared_ptr<std::vector<ParameterUpdates>> updates_;  ///< updates by parameter; the rules read them
  dtrain::ShardedOptimizer<ModuleRule<O>, C> sharded_;
  std::uint64_t steps_before_ = 0;
};

template <class Net, class P, template <class, class> class Ddp, class O>
ShardedOptimizer(Ddp<Net, P>&, O&, ShardedOptions = {})
    -> ShardedOptimizer<O, typename P::ChannelBackend::Communicator>;

}  // namespace DTRAIN_NAMESPACE::libtorch
