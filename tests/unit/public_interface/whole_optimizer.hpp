#pragma once
/// @file
/// An optimizer with all of its state on every rank, which a ShardedOptimizer is compared with.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "dtrain/ddp/sharded/sharded_optimizer.hpp"
#include "dtrain/distributed_data_parallel.hpp"

namespace whole_optimizer {

/// Parameters of all kinds: longer than a block of any rank, shorter than a cache line, empty.
inline const std::vector<std::size_t> sizes{5, 2049, 0, 1, 700, 17, 4096, 31};

/// Element k of rank's gradient i in a step.
inline float element(int step, int rank, std::size_t i, std::size_t k) {
  return std::sin(static_cast<float>(step * 7919 + rank * 104729) + static_cast<float>(i) * 31 +
                  static_cast<float>(k) * 0.37F);
}

template <class AnyModel>
using ElementOf = typename decltype(AnyModel::values)::value_type::value_type;

template <class AnyModel>
void fill_values(AnyModel& model) {
  for (std::size_t i = 0; i < model.list.size(); ++i) {
    for (std::size_t k = 0; k < model.values[i].size(); ++k)
      model.values[i][k] = ElementOf<AnyModel>(element(99, 0, i, k));
  }
}

/// A backward pass, in the reverse order or from the first parameter on.
template <class AnyModel>
auto backward(AnyModel& model, int step, int rank, bool from_first = false) {
  return [&model, step, rank, from_first](dtrain::Ready ready) {
    for (std::size_t n = 0; n < model.list.size(); ++n) {
      const std::size_t i = from_first ? n : model.list.size() - 1 - n;
      const auto gradient = model.list[i].gradient.template as<ElementOf<AnyModel>>();
      for (std::size_t k = 0; k < gradient.size(); ++k)
        gradient[k] = ElementOf<AnyModel>(element(step, rank, i, k));
      ready(i);
    }
  };
}

/// The optimizer with all of its state on every rank.
template <class Rule>
class WholeOptimizer {
  using E = dtrain::ddp::RuleElement<Rule>;

 public:
  explicit WholeOptimizer(Rule rule) : rule_(rule) {
    for (const std::size_t size : sizes)
      states_.emplace_back(dtrain::ddp::state_arrays<Rule>, std::vector<E>(size));
  }

  template <class AnyModel>
  void step(AnyModel& model) {
    ++step_;
    for (std::size_t i = 0; i < model.list.size(); ++i) {
      std::vector<E*> states;
      for (std::vector<E>& state : states_[i])
        states.push_back(state.data());
      dtrain::ddp::apply_rule(rule_, std::span(model.values[i]), model.list[i].gradient.template as<E>(), states.data(),
                              dtrain::StepInfo{step_, i});
    }
  }

 private:
  Rule rule_;
  std::vector<std::vector<std::vector<E>>> states_;
  std::uint64_t step_ = 0;
};

template <class E>
bool equal_bits(const std::vector<std::vector<E>>& a, const std::vector<std::vector<E>>& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i)
    equal = a[i].size() == b[i].size() &&
            (a[i].empty() || std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(E)) == 0);
  return equal;
}

/// Steps after which a ShardedOptimizer has not given the bits of the whole one.
template <class AnyModel, class Rule, class AnyGroup>
int wrong_steps(const AnyGroup& group, Rule rule, dtrain::DdpOptions options, bool warm,
                const dtrain::ShardedOptions& stage = {}) {
  AnyModel whole(sizes);
  AnyModel sharded(sizes);
  fill_values(whole);
  fill_values(sharded);
  if (group.rank() != 0) sharded.values[1][3] = 7;  // the wrapper makes it rank 0's
  WholeOptimizer reference(rule);
  dtrain::DistributedDataParallel expected{whole, group, options};
  dtrain::DistributedDataParallel ddp{sharded, group, options};
  if (warm) ddp.backward(backward(sharded, 50, group.rank(), true));  // plans the buckets in this order
  dtrain::ShardedOptimizer optimizer{ddp, rule, stage};
  int wrong = 0;
  for (int step = 0; step < 6; ++step) {
    expected.backward(backward(whole, step, group.rank()));
    reference.step(whole);
    ddp.backward(backward(sharded, step, group.rank(), warm), optimizer);
    wrong += equal_bits(whole.values, sharded.values) ? 0 : 1;
  }
  return wrong + (optimizer.steps() == 6 ? 0 : 1);
}

}  // namespace whole_optimizer
