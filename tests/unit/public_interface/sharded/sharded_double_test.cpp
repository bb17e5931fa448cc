// ShardedOptimizer of f64 models: weights, state and arithmetic are f64.

#include "unit/public_interface/prelude.hpp"

using namespace whole_optimizer;
using dtrain::ShardedOptions;
using dtrain::StepInfo;

namespace sharded_double_test {

using DoubleModel = front_test::BasicModel<double>;
using Values = std::vector<std::vector<double>>;
namespace f64 = optimizers::f64;

/// AdamW of torch.optim, in double, without dtrain's code.
struct PlainAdamW {
  double rate, weight_decay;
  Values means, squares;
  int steps = 0;

  void step(DoubleModel& model) {
    ++steps;
    means.resize(model.values.size());
    squares.resize(model.values.size());
    for (std::size_t i = 0; i < model.values.size(); ++i) {
      means[i].resize(model.values[i].size());
      squares[i].resize(model.values[i].size());
      for (std::size_t k = 0; k < model.values[i].size(); ++k) {
        const double gradient = model.gradients[i][k];
        double& mean = means[i][k];
        double& square = squares[i][k];
        model.values[i][k] *= 1 - rate * weight_decay;
        mean = 0.9 * mean + 0.1 * gradient;
        square = 0.999 * square + 0.001 * gradient * gradient;
        model.values[i][k] -=
            rate * (mean / (1 - std::pow(0.9, steps))) / (std::sqrt(square / (1 - std::pow(0.999, steps))) + 1e-8);
      }
    }
  }
};

/// The largest difference, relative to a value of at least 1e-3.
double largest_error(const Values& expected, const Values& values) {
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (std::size_t k = 0; k < expected[i].size(); ++k)
      largest = std::max(largest, std::abs(expected[i][k] - values[i][k]) / std::max(1e-3, std::abs(expected[i][k])));
  }
  return largest;
}

void check_against_plain(int ranks, const ShardedOptions& stage) {
  run_well(ranks, [&](const Group& group) {
    DoubleModel plain(sizes);
    DoubleModel sharded(sizes);
    fill_values(plain);
    fill_values(sharded);
    PlainAdamW reference{1e-2, 1e-2, {}, {}};
    DistributedDataParallel expected{plain, group, {.bucket_bytes = 3000}};
    DistributedDataParallel ddp{sharded, group, {.bucket_bytes = 3000}};
    ShardedOptimizer optimizer{ddp, f64::AdamW{.rate = 1e-2}, stage};
    for (int step = 0; step < 20; ++step) {
      expected.backward(backward(plain, step, group.rank()));
      reference.step(plain);
      ddp.backward(backward(sharded, step, group.rank()), optimizer);
    }
    CHECK(largest_error(plain.values, sharded.values) < 1e-12);  // f32 would have 1e-7
  });
}

TEST_CASE("an f64 model has the weights of a plain f64 optimizer, on any number of ranks and in both stages") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    check_against_plain(ranks, {});
    check_against_plain(ranks, {.stage = 2});
  }
}

TEST_CASE("each f64 rule gives the bits of the rule with all of its state on every rank") {
  for (const int ranks : {1, 2, 3}) {
    for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{3000}, std::size_t{1} << 20}) {
      CAPTURE(ranks);
      CAPTURE(bucket_bytes);
      run_well(ranks, [&](const Group& group) {
        const DdpOptions options{.bucket_bytes = bucket_bytes};
        const auto check = [&](auto rule) {
          CHECK(wrong_steps<DoubleModel>(group, rule, options, false) == 0);
          CHECK(wrong_steps<DoubleModel>(group, rule, options, true, {.stage = 2}) == 0);
        };
        check(f64::Sgd{.rate = 0.1, .weight_decay = 0.01});
        check(f64::Momentum{.rate = 0.1, .nesterov = true});
        check(f64::Adam{.weight_decay = 0.1});
        check(f64::AdamW{.rate = 0.01});
        check(f64::RmsProp{.momentum = 0.5});
        check(f64::Adagrad{.initial_sum = 0.1});
      });
    }
  }
}

/// A rule of doubles of a program's own, which needs norms.
struct Scaled {
  struct State {
    std::span<double> sum;
  };
  dtrain::ParameterNorms measure(std::span<const double> weights, std::span<const double>, State,
                                 const StepInfo&) const {
    dtrain::ParameterNorms squares;
    for (const double weight : weights)
      squares.weights += weight * weight;
    return squares;
  }
  void operator()(std::span<double> weights, std::span<const double> gradients, State state,
                  const StepInfo& info) const {
    for (std::size_t k = 0; k < weights.size(); ++k) {
      state.sum[k] += gradients[k];
      weights[k] = info.norms.weights + state.sum[k];
    }
  }
};

TEST_CASE("a rule of doubles may measure norms, clips in f64, and its state takes 8 bytes for each weight") {
  static_assert(dtrain::ddp::state_arrays<Scaled> == 1);
  static_assert(dtrain::ddp::state_arrays<f64::Lamb> == 2);
  run_well(2, [](const Group& group) {
    DoubleModel model({1000});
    model.values[0].assign(1000, 1.0 + 1e-12);
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, Scaled{}};
    const auto pass = [&](Ready ready) {
      model.gradients[0].assign(1000, 1.0 + 1e-9);
      ready(0);
    };
    ddp.backward(pass, optimizer, {.inspect = [](dtrain::StepGradients& gradients) {
                   gradients.scale(1.0 / 3);
                   return true;
                 }});
    CHECK(model.values[0][999] == doctest::Approx(std::sqrt(1000.0) * (1 + 1e-12) + (1 + 1e-9) / 3).epsilon(1e-14));
    CHECK(optimizer.state_bytes() == 8 * (1000 / 2 / 16 * 16 + 1000 % 32));
    DoubleModel lamb_model(sizes);
    DistributedDataParallel of_lamb{lamb_model, group};
    ShardedOptimizer lamb{of_lamb, f64::Lamb{}};
    of_lamb.backward(backward(lamb_model, 0, group.rank()), lamb);
    of_lamb.compare_values();
  });
}

/// Three steps, a checkpoint at `path` of the state on `ranks`, and two steps more. @returns the weights at the end
Values train(int ranks, const std::string& path, bool loads) {
  Values end;
  run_well(ranks, [&](const Group& group) {
    DoubleModel model(sizes);
    DistributedDataParallel ddp{model, group, {.bucket_bytes = loads ? std::size_t{0} : std::size_t{3000}}};
    ShardedOptimizer optimizer{ddp, f64::AdamW{.rate = 0.01}};
    if (loads) CHECK(dtrain::load_checkpoint(group, path, dtrain::parameter_values(model.list), optimizer));
    for (int number = loads ? 3 : 0; number < 5; ++number) {
      if (number == 3 && !loads) dtrain::save_checkpoint(group, path, dtrain::parameter_values(model.list), optimizer);
      ddp.backward(backward(model, number, 0), optimizer);  // the same gradients on all ranks
    }
    CHECK(optimizer.steps() == 5);
    if (group.rank() == 0) end = model.values;
  });
  return end;
}

TEST_CASE_FIXTURE(TemporaryFile, "an f64 training goes on to the bit on another number of ranks") {
  for (const int savers : {1, 2}) {
    const Values expected = train(savers, path, false);
    for (const int ranks : {1, 2, 4}) {
      CAPTURE(savers);
      CAPTURE(ranks);
      CHECK(equal_bits(train(ranks, path, true), expected));
    }
  }
  run_well(1, [&](const Group& group) {
    Model model(sizes);
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, optimizers::AdamW{}};
    CHECK_ERROR(dtrain::load_checkpoint(group, path, dtrain::parameter_values(model.list), optimizer), Errc::protocol,
                "its tensor 'layer0' is f64 [5], the program's is f32 [5]");
  });
}

/// A rule of floats that has a rule of doubles.
struct EitherAdamW : optimizers::AdamW {
  f64::AdamW doubles;
};

/// Weights after three steps at half the rate that `rate_of` gives.
template <class AnyModel, class Rule, class RateOf>
auto trained(const Group& group, const Rule& rule, RateOf rate_of) {
  AnyModel model(sizes);
  fill_values(model);
  DistributedDataParallel ddp{model, group};
  ShardedOptimizer optimizer{ddp, rule};
  rate_of(optimizer.rule()) /= 2;
  for (int step = 0; step < 3; ++step)
    ddp.backward(backward(model, step, group.rank()), optimizer);
  return model.values;
}

TEST_CASE("a rule of floats with a rule of doubles updates models of either type") {
  struct OtherState : optimizers::Momentum {
    f64::AdamW doubles;
  };
  static_assert(dtrain::ddp::HasDoubles<EitherAdamW>);
  static_assert(!dtrain::ddp::HasDoubles<OtherState> && !dtrain::ddp::HasDoubles<optimizers::AdamW>);
  const auto own = [](auto& rule) -> auto& {
    return rule.rate;
  };
  const auto of_doubles = [](auto& rule) -> auto& {
    return rule.doubles.rate;
  };
  run_well(2, [&](const Group& group) {
    CHECK(equal_bits(trained<DoubleModel>(group, EitherAdamW{}, of_doubles),
                     trained<DoubleModel>(group, f64::AdamW{}, own)));
    CHECK(equal_bits(trained<Model>(group, EitherAdamW{}, own), trained<Model>(group, optimizers::AdamW{}, own)));
  });
}

TEST_CASE("a rule of another element type than the model's is refused in a sentence") {
  run_well(1, [](const Group& group) {
    DoubleModel doubles({3});
    DistributedDataParallel of_doubles{doubles, group};
    CHECK_ERROR(ShardedOptimizer(of_doubles, optimizers::Sgd{}), Errc::unsupported,
                "ShardedOptimizer got parameter 0 'layer0', of f64 on host; it takes f32, f16 and bf16 in host memory "
                "(dtrain::ShardedOptimizer takes f64 with a rule of dtrain::optimizers::f64)");
    Model floats({3});
    DistributedDataParallel of_floats{floats, group};
    CHECK_ERROR(
        ShardedOptimizer(of_floats, f64::Sgd{}), Errc::unsupported,
        "ShardedOptimizer got parameter 0 'layer0', of f32 on host; with a rule of doubles it takes f64 in host "
        "memory");
    dtrain::ParameterList mixed = {doubles.list[0], floats.list[0]};
    DistributedDataParallel of_both{mixed, group};
    CHECK_ERROR(
        ShardedOptimizer(of_both, f64::Sgd{}), Errc::unsupported,
        "ShardedOptimizer got parameter 1 'layer0', of f32, beside parameter 0 'layer0', of f64; f64 parameters "
        "are updated without others: convert them, or give the two types a wrapper and an optimizer each");
  });
}

}  // namespace sharded_double_test
