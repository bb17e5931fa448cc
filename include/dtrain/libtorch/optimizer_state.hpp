#pragma once
/// @file
/// Optimizer state: tensors and numbers that LibTorch's optimizers and schedulers keep, by name and in place.

#include <c10/util/Type.h>
#include <torch/torch.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <dtrain/dtrain.hpp>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace DTRAIN_NAMESPACE::libtorch::detail {

inline std::string class_of(const torch::optim::Optimizer& optimizer) {
  return c10::demangle(typeid(optimizer).name());
}

/// Makes a tensor as an optimizer does for a parameter in its first update, unless it is there.
inline void begin_with_zeros(torch::Tensor& tensor, const torch::Tensor& parameter) {
  if (!tensor.defined()) tensor = torch::zeros_like(parameter, torch::MemoryFormat::Preserve);
}

/// Members of an optimizer class O:
/// - Options and State: LibTorch's classes of a parameter group's options and of a parameter's state.
/// - options(options, visit): `visit(name, double&)` or `visit(name, bool&)` for each option by Python's name, and
///   `visit("betas", double&, double&)`.
/// - arrays: the number of state arrays of the sharded optimizer's rule, which are the first tensors of the state.
/// - has_state(options): whether a parameter has a state.
/// - begin(state, parameter, options): makes what step() makes for a parameter that has no state. The first update
///   from there has the bits of step()'s own. @throws Error (unsupported) if there is no such state
/// - state(state, visit): `visit(name, torch::Tensor&)` for each tensor, `visit(name, std::int64_t&)` for a counter.
template <class O>
struct StateOf;

template <class OptionsClass, class StateClass>
struct AdamStateOf {
  using Options = OptionsClass;
  using State = StateClass;
  static constexpr std::size_t arrays = 2;

  template <class Visit>
  static void options(Options& options, Visit visit) {
    visit("lr", options.lr());
    visit("betas", std::get<0>(options.betas()), std::get<1>(options.betas()));
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
  }
  static bool has_state(const Options&) { return true; }
  static void begin(State& state, const torch::Tensor& parameter, const Options& options) {
    begin_with_zeros(state.exp_avg(), parameter);
    begin_with_zeros(state.exp_avg_sq(), parameter);
    if (options.amsgrad()) begin_with_zeros(state.max_exp_avg_sq(), parameter);
  }
  template <class Visit>
  static void state(State& state, Visit visit) {
    visit("step", state.step());
    visit("exp_avg", state.exp_avg());
    visit("exp_avg_sq", state.exp_avg_sq());
    visit("max_exp_avg_sq", state.max_exp_avg_sq());
  }
};

template <>
struct StateOf<torch::optim::Adam> : AdamStateOf<torch::optim::AdamOptions, torch::optim::AdamParamState> {};
template <>
struct StateOf<torch::optim::AdamW> : AdamStateOf<torch::optim::AdamWOptions, torch::optim::AdamWParamState> {};

template <>
struct StateOf<torch::optim::SGD> {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr std::size_t arrays = 1;

  template <class Visit>
  static void options(Options& options, Visit visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit("nesterov", options.nesterov());
  }
  static bool has_state(const Options& options) { return options.momentum() != 0; }
  static void begin(State& state, const torch::Tensor& parameter, const Options& options) {
    if (state.momentum_buffer().defined()) return;
    if (options.dampening() != 0) {
      throw Error(Errc::unsupported,
                  "torch::optim::SGD with dampening makes its first update without it, so that no state stands for "
                  "one that has made none; leave dampening out");
    }
    begin_with_zeros(state.momentum_buffer(), parameter);
  }
  template <class Visit>
  static void state(State& state, Visit visit) {
    visit("momentum_buffer", state.momentum_buffer());
  }
};

template <>
struct StateOf<torch::optim::RMSprop> {
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr std::size_t arrays = 2;

  template <class Visit>
  static void options(Options& options, Visit visit) {
    visit("lr", options.lr());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("momentum", options.momentum());
    visit("centered", options.centered());
  }
  static bool has_state(const Options&) { return true; }
  static void begin(State& state, const torch::Tensor& parameter, const Options& options) {
    begin_with_zeros(state.square_avg(), parameter);
    if (options.momentum() > 0) begin_with_zeros(state.momentum_buffer(), parameter);
    if (options.centered()) begin_with_zeros(state.grad_avg(), parameter);
  }
  template <class Visit>
  static void state(State& state, Visit visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg());
    visit("momentum_buffer", state.momentum_buffer());
    visit("grad_avg", state.grad_avg());
  }
};

template <>
struct StateOf<torch::optim::Adagrad> {
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr std::size_t arrays = 1;

  template <class Visit>
  static void options(Options& options, Visit visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit("eps", options.eps());
  }
  static bool has_state(const Options&) { return true; }
  static void begin(State& state, const torch::Tensor& parameter, const Options& options) {
    if (!state.sum().defined()) {
      state.sum(torch::full_like(parameter, options.initial_accumulator_value(), torch::MemoryFormat::Preserve));
    }
  }
  template <class Visit>
  static void state(State& state, Visit visit) {
    visit("step", state.step());
    visit("sum", state.sum());
  }
};

/// Calls `act(StateOf<O>())` for the optimizer's class O, if it is one of those or derived from it. @returns whether it
/// is
template <class Act>
bool if_state_known(const torch::optim::Optimizer& optimizer, Act act) {
  using namespace torch::optim;
  const auto has_class = [&]<class O>(StateOf<O> of) {
    if (dynamic_cast<const O*>(&optimizer) == nullptr) return false;
    act(of);
    return true;
  };
  return has_class(StateOf<Adam>()) || has_class(StateOf<AdamW>()) || has_class(StateOf<SGD>()) ||
         has_class(StateOf<RMSprop>()) || has_class(StateOf<Adagrad>());
}

/// The same. @param task of the caller, for the error @throws Error (unsupported) for another class
template <class Act>
void with_state_of(const torch::optim::Optimizer& optimizer, const std::string& task, Act act) {
  if (if_state_known(optimizer, act)) return;
  throw Error(Errc::unsupported, task + " knows the state of Adam, AdamW, SGD, RMSprop and Adagrad, and not that of " +
                                     class_of(optimizer) + "; use one of these");
}

/// LibTorch 2 finds a parameter's state by its address, earlier versions by the address as text, "0x55d0c0de".
template <class Key>
Key state_key(const torch::Tensor& parameter) {
  if constexpr (std::is_same_v<Key, std::string>) {
    std::array<char, 2 * sizeof(std::uintptr_t)> digits{};
    const auto address = reinterpret_cast<std::uintptr_t>(parameter.unsafeGetTensorImpl());
    const auto written = std::to_chars(digits.data(), digits.data() + digits.size(), address, 16);
    return "0x" + std::string(digits.data(), written.ptr);
  } else {
    return parameter.unsafeGetTensorImpl();
  }
}

/// Key of the parameter's state in optimizer.state().
inline auto state_key_of(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  return state_key<typename std::remove_reference_t<decltype(optimizer.state())>::key_type>(parameter);
}

/// State of `parameter` in the optimizer; nullptr if there is none. @tparam Of StateOf<O> of the optimizer's class
template <class Of>
typename Of::State* find_state(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  const auto found = optimizer.state().find(state_key_of(optimizer, parameter));
  return found == optimizer.state().end() ? nullptr : static_cast<typename Of::State*>(found->second.get());
}

/// The same, made if it is missing. @throws as Of::begin
template <class Of>
typename Of::State& present_state(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter,
                                  const typename Of::Options& options) {
  auto* state = find_state<Of>(optimizer, parameter);
  std::unique_ptr<typename Of::State> made;
  if (state == nullptr) made = std::make_unique<typename Of::State>();
  if (made) state = made.get();
  Of::begin(*state, parameter, options);
  if (made) optimizer.state()[state_key_of(optimizer, parameter)] = std::move(made);
  return *state;
}

/// Steps of a scheduler, of which its next rates depend.
inline unsigned& steps_of(torch::optim::LRScheduler& scheduler) {
  struct Open : torch::optim::LRScheduler {  // the member is protected
    static unsigned torch::optim::LRScheduler::*steps() { return &Open::step_count_; }
  };
  return scheduler.*Open::steps();
}

}  // namespace DTRAIN_NAMESPACE::libtorch::detail
