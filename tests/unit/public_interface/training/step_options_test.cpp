// StepOptions of plain and sharded steps: results, bits, errors that leave the job alive, and lifetimes.

#include "unit/public_interface/prelude.hpp"

using namespace whole_optimizer;
using dtrain::LossScaler;
using dtrain::MasterWeights;
using dtrain::StepGradients;
using dtrain::StepOptions;

namespace step_options_test {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// A step of a wrapper, with the optimizer or without. @returns whether there is an update
template <class Ddp, class Optimizer, class Pass>
bool run_step(Ddp& ddp, Optimizer& optimizer, bool is_sharded, const Pass& pass, StepOptions options) {
  return is_sharded ? ddp.backward(pass, optimizer, std::move(options)) : ddp.backward(pass, std::move(options));
}

/// The squares are added in another order.
bool is_near(double norm, double expected) {
  return std::abs(norm - expected) <= 1e-14 * expected;
}

/// Steps after which a sharded step has given other weights than a plain one with the same options.
template <class AnyModel>
int wrong_weights(const Group& group, std::size_t bucket_bytes, int stage) {
  AnyModel whole(sizes);
  Model sharded(sizes);
  fill_values(whole);
  fill_values(sharded);
  const optimizers::Momentum rule{.rate = 0.1F};
  WholeOptimizer reference(rule);
  DistributedDataParallel expected{whole, group, {.bucket_bytes = bucket_bytes}};
  DistributedDataParallel ddp{sharded, group, {.bucket_bytes = bucket_bytes}};
  ShardedOptimizer optimizer{ddp, rule, {.stage = stage}};
  LossScaler scaler({.initial_scale = 1000});  // a quotient and a clipped one are rounded, each
  LossScaler of_sharded({.initial_scale = 1000});
  int wrong = 0;
  for (int step = 0; step < 8; ++step) {
    StepOptions options{.measure_norm = true};
    if (step % 4 != 0) options.clip_norm = 3e-3;
    if (step % 4 > 1) options.scaler = &scaler;
    if (step % 4 == 3)
      options.inspect = [](StepGradients& gradients) {
        gradients.scale(1.0 / 3);
        return true;
      };
    CHECK(expected.backward(backward(whole, step, group.rank()), options));
    reference.step(whole);
    if (options.scaler) options.scaler = &of_sharded;
    CHECK(ddp.backward(backward(sharded, step, group.rank()), optimizer, options));
    CHECK((ddp.gradient_norm().norm < 3.01e-3) == (step % 4 != 0));
    const GradientNorm& norm = ddp.gradient_norm();
    CHECK((norm.finite && is_near(norm.norm, expected.gradient_norm().norm)));
    CHECK(is_near(norm.before_clipping, expected.gradient_norm().before_clipping));
    CHECK((group.world_size() > 1 || norm.norm == expected.gradient_norm().norm));
    double smallest = norm.norm;
    group.all_reduce(std::span(&smallest, 1), dtrain::ReduceOp::min);
    CHECK(norm.norm == smallest);
    if (front_test::largest_difference(joined(whole.values), joined(sharded.values)) != 0) ++wrong;
  }
  return wrong;
}

TEST_CASE("a sharded step has the norm of a plain step with the same options, and its weights to the bit") {
  for (const int ranks : {1, 2, 3}) {
    for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{3000}, std::size_t{1} << 20}) {
      CAPTURE(ranks);
      CAPTURE(bucket_bytes);
      run_well(ranks, [&](const Group& group) {
        CHECK(wrong_weights<Model>(group, bucket_bytes, 1) == 0);
        CHECK(wrong_weights<BindingModel>(group, bucket_bytes, 2) == 0);
      });
    }
  }
}

TEST_CASE("options that do not fit are an Error on every rank, and the next step is as before") {
  run_well(2, [](const Group& group) {
    Model model({10});
    Model other({7});
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}};
    MasterWeights own{model};
    MasterWeights of_other{other};
    const auto pass = [&](Ready ready) { fill_gradients(model, ready, 1.0F); };
    for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
      CAPTURE(bad);
      CHECK_ERROR(ddp.backward(pass, {.clip_norm = bad}), Errc::invalid_argument, "backward() has a clip_norm of");
      CHECK_ERROR(ddp.backward(pass, optimizer, {.clip_norm = bad}), Errc::invalid_argument, "or 0 for no clipping");
      CHECK_ERROR(ddp.step_without_data({.clip_norm = bad}), Errc::invalid_argument, "or 0 for no clipping");
      CHECK_ERROR(ddp.begin({.clip_norm = bad}), Errc::invalid_argument, "begin() has a clip_norm of");
      CHECK_ERROR(ddp.begin(optimizer, {.clip_norm = bad}), Errc::invalid_argument, "begin() has a clip_norm of");
    }
    CHECK_ERROR(ddp.backward(pass, {.master = &of_other}), Errc::invalid_argument,
                "backward() has MasterWeights of another model: 1 parameters of 7 elements");
    CHECK_ERROR(ddp.backward(pass, optimizer, {.master = &own}), Errc::invalid_argument,
                "a ShardedOptimizer keeps f32 weights of 16-bit models itself");
    CHECK(ddp.backward(pass, {.clip_norm = 1, .master = &own}));
    CHECK(own.gradients()[9] == doctest::Approx(1 / std::sqrt(10.0)));
    CHECK_ERROR(ddp.clip_gradients(1), Errc::invalid_argument, "MasterWeights, which has used them");
    CHECK(ddp.backward(pass, optimizer));
    CHECK(optimizer.steps() == 1);
    group.barrier();
  });
}

TEST_CASE("an overflow on one rank makes every rank's step false and halves the scale, and changes nothing else") {
  for (const bool is_sharded : {false, true}) {
    CAPTURE(is_sharded);
    run_well(3, [&](const Group& group) {
      Model model({10, 3000});
      DistributedDataParallel ddp{model, group, {.bucket_bytes = 1000}};
      ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}};
      LossScaler scaler({.initial_scale = 64});
      int calls = 0;
      const StepOptions options{
          .clip_norm = 1, .scaler = &scaler, .inspect = [&](StepGradients&) { return ++calls > 0; }};
      const auto pass_with = [&](float last) {
        return [&, last](Ready ready) {
          write_gradients(model, ready, [&](std::size_t i, std::size_t k) {
            return i == 1 && k == 2999 && group.rank() == 2 ? last : 2.0F;
          });
        };
      };
      CHECK_FALSE(run_step(ddp, optimizer, is_sharded, pass_with(infinity), options));
      CHECK(scaler.scale() == 32);
      CHECK(calls == 0);
      CHECK(model.all_are(0));
      CHECK_FALSE(ddp.gradient_norm().finite);
      CHECK((model.gradients[0][5] == 2 && model.gradients[1][2998] == 2));
      CHECK(run_step(ddp, optimizer, is_sharded, pass_with(2.0F), options));
      CHECK(scaler.scale() == 32);
      CHECK(calls == 1);
      CHECK(ddp.gradient_norm().norm == doctest::Approx(1));
      const float clipped = is_sharded ? -model.values[1][2999] : model.gradients[1][2999];
      CHECK(clipped == doctest::Approx(1 / std::sqrt(3010.0)));
    });
  }
}

TEST_CASE("under no_sync() options are ignored, and the result is false") {
  run_well(2, [](const Group& group) {
    Model model({10});
    DistributedDataParallel ddp{model, group};
    LossScaler scaler({.initial_scale = 4, .growth_interval = 1});
    MasterWeights master{model};
    int calls = 0;
    const StepOptions options{.clip_norm = 1e-3,
                              .scaler = &scaler,
                              .inspect = [&](StepGradients&) { return ++calls > 0; },
                              .master = &master};
    const auto pass = [&](Ready ready) {
      for (float& gradient : model.gradients[0])
        ++gradient;
      ready(0);
    };
    {
      const auto held = ddp.no_sync();
      CHECK_FALSE(ddp.backward(pass, options));
      dtrain::Step step = ddp.begin(options);
      pass(step.ready());
      CHECK_FALSE(step.finish());
    }
    CHECK((calls == 0 && scaler.scale() == 4));
    CHECK(model.gradients[0] == std::vector<float>(10, 2));
    CHECK(master.gradients()[0] == 0);
    CHECK(ddp.backward(pass, {.scaler = &scaler}));
    CHECK(model.gradients[0] == std::vector<float>(10, 0.75F));  // three passes
    CHECK(scaler.scale() == 8);
  });
}

TEST_CASE("a step without data has the options of the other ranks' steps") {
  for (const bool is_sharded : {false, true}) {
    CAPTURE(is_sharded);
    run_well(2, [&](const Group& group) {
      Model model({3, 3000});
      DistributedDataParallel ddp{model, group, {.bucket_bytes = 1000}};
      ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}};
      LossScaler scaler({.initial_scale = 4});
      for (const float value : {8.0F, infinity, 8.0F}) {
        const StepOptions options{.clip_norm = 1, .scaler = &scaler};
        const double before = std::sqrt(3003.0) * 4 / static_cast<double>(scaler.scale());  // the mean of 8 and 0
        const auto pass = [&](Ready ready) { fill_gradients(model, ready, value); };
        bool updates = false;
        if (group.rank() == 0) {
          updates = run_step(ddp, optimizer, is_sharded, pass, options);
        } else {
          updates = is_sharded ? ddp.step_without_data(optimizer, options) : ddp.step_without_data(options);
        }
        CHECK(updates == (value == 8));
        if (value == 8) CHECK(ddp.gradient_norm().before_clipping == doctest::Approx(before));
        if (value == 8 && !is_sharded) CHECK(model.gradients[1][7] == doctest::Approx(1 / std::sqrt(3003.0)));
      }
      CHECK(scaler.scale() == 2);
      if (is_sharded) CHECK(model.values[0][2] == doctest::Approx(-2 / std::sqrt(3003.0)));
    });
  }
}

TEST_CASE("an exception of the function that inspects ends the job with its text") {
  for (const bool is_sharded : {false, true}) {
    CAPTURE(is_sharded);
    expect_ends(2, {"the norm is too large"}, [&](const Group& group) {
      Model model({10, 3000});
      DistributedDataParallel ddp{model, group};
      ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}};
      const auto inspect = [&](StepGradients& gradients) {
        if (group.rank() == 1 && gradients.gradient_norm().norm > 1) throw std::runtime_error("the norm is too large");
        return true;
      };
      run_step(ddp, optimizer, is_sharded, [&](Ready ready) { fill_gradients(model, ready, 1.0F); },
               {.inspect = inspect});
      group.barrier();  // the other rank may have finished its step
    });
  }
}

TEST_CASE("what the function that inspects has captured is released when the step has ended, or is refused") {
  run_well(1, [](const Group& group) {
    Model model({10});
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}};
    const auto pass = [&](Ready ready) { fill_gradients(model, ready, 1.0F); };
    const auto calls = std::make_shared<int>(0);
    const auto options = [&calls](bool updates) {
      return StepOptions{.inspect = [calls, updates](StepGradients&) {
        ++*calls;
        return updates;
      }};
    };
    for (const bool updates : {true, false}) {
      for (const bool is_sharded : {false, true}) {
        CHECK(run_step(ddp, optimizer, is_sharded, pass, options(updates)) == updates);
        CHECK(calls.use_count() == 1);
      }
    }
    dtrain::Step step = ddp.begin(options(true));
    CHECK(calls.use_count() == 2);
    pass(step.ready());
    CHECK(step.finish());
    CHECK(calls.use_count() == 1);
    CHECK(*calls == 5);
    Model another({10});
    DistributedDataParallel other{another, group};
    ShardedOptimizer of_other{other, optimizers::Sgd{.rate = 1}};
    CHECK_ERROR(ddp.begin(of_other, options(true)), Errc::invalid_argument, "that of another DistributedDataParallel");
    CHECK(calls.use_count() == 1);  // the step was refused
    const auto held = ddp.no_sync();
    CHECK_FALSE(ddp.backward(pass, options(true)));
    CHECK((*calls == 5 && calls.use_count() == 1));
  });
}

}  // namespace step_options_test
