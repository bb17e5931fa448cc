#pragma once
/// @file
/// OptimizerRule: concept of how a sharded optimizer changes weights, element by element, in host memory. StepInfo,
/// ParameterNorms: its arguments.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Two numbers of one whole parameter, for rules whose step depends on them: sums of squares from measure(), and their
/// roots in StepInfo.
/// @ingroup sharding
struct ParameterNorms {
  double weights = 0;
  double update = 0;  ///< the rule's second quantity; Lamb's is its step
};

/// Arguments of a rule besides the elements.
/// @ingroup sharding
struct StepInfo {
  std::uint64_t step = 1;     ///< number of this update, from 1
  std::size_t parameter = 0;  ///< the elements' parameter: a position in the model's parameters()
  ParameterNorms norms{};     ///< L2 norms of the parameter for rules with measure(), equal on all ranks
};

namespace detail {

/// The state of rules that declare none.
struct NoState {};

template <class Rule>
struct StateOf {
  using type = NoState;
};
template <class Rule>
requires requires {
  typename Rule::State;
}
struct StateOf<Rule> {
  using type = typename Rule::State;
};

template <class State, class E, std::size_t... I>
constexpr bool holds_spans(std::index_sequence<I...>) {
  return requires {
    State{(static_cast<void>(I), std::declval<std::span<E>>())...};
  };
}

/// The number of spans that a State holds: the most that it can be initialized from.
template <class State, class E, std::size_t Most = 8>
constexpr std::size_t span_count() {
  if constexpr (Most == 0) {
    return 0;
  } else if constexpr (holds_spans<State, E>(std::make_index_sequence<Most>())) {
    return Most;
  } else {
    return span_count<State, E, Most - 1>();
  }
}

/// Whether these can be the names of a rule's arrays in checkpoints. dtrain's own "master" is for f32 weights.
template <std::size_t Count>
constexpr bool are_array_names(const std::string_view (&names)[Count]) {
  for (std::size_t i = 0; i < Count; ++i) {
    if (names[i].empty() || names[i] == "master" || names[i].find('.') != names[i].npos) return false;
    for (std::size_t k = 0; k < i; ++k) {
      if (names[k] == names[i]) return false;
    }
  }
  return true;
}

/// Whether a rule is called with spans of E.
template <class R, class E>
concept TakesSpansOf = std::is_invocable_v < const R&,
        std::span<E>, std::span<const E>,
typename StateOf<R>::type,
    const StepInfo& > || std::is_invocable_v<const R&, std::span<E>, std::span<const E>, const StepInfo&>;

}  // namespace detail

/// `rule(weights, gradients, state, info)` changes `weights`, and `state`, by `gradients`. All spans have equal lengths
/// and are the same part of one parameter. `Rule::State` is a struct of at most eight `std::span<float>`; a rule
/// without State is called by `rule(weights, gradients, info)`. All state begins as zeros. A rule whose spans are all
/// of double in place of float is for models of f64 in host memory. A rule of floats may have a member `doubles`, a
/// rule of doubles with as many state arrays: models of f64 in host memory are updated by this member.
/// - A State may name its spans in checkpoints: `static constexpr std::string_view names[] = {"exp_avg",
/// "exp_avg_sq"}`, different names without dots. Without the member they are state0, state1 and so on.
/// - Elements do not depend on each other: a parameter is given in parts of any length, on several ranks, in any order.
/// - The rule is called from one thread at a time, which need not be the program's.
/// - A rule with a State may also have `ParameterNorms measure(weights, gradients, state, info) const`, with constant
/// weights. measure() returns sums of squares of its part, and may change the state. All parts of all parameters are
/// measured before the first part is updated. Measure and update of a part get the same gradients.
/// @ingroup sharding
template <class R>
concept OptimizerRule = detail::TakesSpansOf<R, float> || detail::TakesSpansOf<R, double>;

/// The type of a rule's weights, gradients and state: float, or double.
template <class R>
using RuleElement =
    std::conditional_t<detail::TakesSpansOf<R, double> && !detail::TakesSpansOf<R, float>, double, float>;

/// The number of elements of state for each weight.
template <class R>
inline constexpr std::size_t state_arrays = detail::span_count<typename detail::StateOf<R>::type, RuleElement<R>>();

/// The state arrays of a rule without its type.
struct StateArrays {
  StateArrays(std::size_t arrays, const std::string_view* their_names = nullptr) : count(arrays), names(their_names) {}

  template <class R>
  static StateArrays of() noexcept {
    using State = typename detail::StateOf<R>::type;
    if constexpr (requires { State::names; }) {
      static_assert(std::size(State::names) == state_arrays<R>,
                    "dtrain: the names of a rule's State are as many as its spans");
      static_assert(detail::are_array_names(State::names),
                    "dtrain: the names of a rule's State differ, have no dot, and none is empty or \"master\"");
      return {state_arrays<R>, State::names};
    } else {
      return {state_arrays<R>};
    }
  }

  std::size_t count;
  const std::string_view* names;  ///< names in checkpoints; null: state0, state1 ...
};

namespace detail {

/// Whether D is a rule of doubles with as many state arrays as R.
template <class D, class R>
inline constexpr bool is_double_rule = (state_arrays<D> == state_arrays<R>)&&std::is_same_v<RuleElement<D>, double>;

}  // namespace detail

/// Whether the rule, of floats, has a member `doubles`: a rule of doubles with as many state arrays.
template <class R>
concept HasDoubles = detail::TakesSpansOf<R, float> && detail::is_double_rule<decltype(R::doubles), R>;

/// The rule's state. @param states the address of each state array, of `count` elements
template <OptimizerRule R>
auto state_of(RuleElement<R>* const* states, std::size_t count) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return typename detail::StateOf<R>::type{std::span<RuleElement<R>>(states[I], count)...};
  }
  (std::make_index_sequence<state_arrays<R>>());
}

/// Calls the rule. @param states the address of each state array, of as many elements as the weights
template <OptimizerRule R>
void apply_rule(const R& rule, std::span<RuleElement<R>> weights, std::span<const RuleElement<R>> gradients,
                RuleElement<R>* const* states, const StepInfo& info) {
  if constexpr (state_arrays<R> == 0) {
    rule(weights, gradients, info);
  } else {
    rule(weights, gradients, state_of<R>(states, weights.size()), info);
  }
}

/// Whether the rule has a member measure, with the right signature or another.
template <class R>
concept HasMeasure = requires {
  &R::measure;
};

/// Whether the rule's step depends on norms of whole parameters.
/// @ingroup sharding
template <class R>
concept NormedRule = HasMeasure<R> && requires(const R& rule, std::span<const RuleElement<R>> elements,
                                               typename detail::StateOf<R>::type state, const StepInfo& info) {
  { rule.measure(elements, elements, state, info) } -> std::same_as<ParameterNorms>;
};

/// Calls measure() of the rule. @param states as of apply_rule
template <OptimizerRule R>
requires NormedRule<R> ParameterNorms measure_rule(const R& rule, std::span<const RuleElement<R>> weights,
                                                   std::span<const RuleElement<R>> gradients,
                                                   RuleElement<R>* const* states, const StepInfo& info) {
  return rule.measure(weights, gradients, state_of<R>(states, weights.size()), info);
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::ParameterNorms;
using ddp::StepInfo;
}  // namespace DTRAIN_NAMESPACE
