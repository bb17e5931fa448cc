// ctest: TIMEOUT 240
// Clipping in a step with a ShardedOptimizer on devices has the bits of the host's, and waits for nothing.

#include "unit/cuda/ddp/sharded_model.hpp"
#include "unit/cuda/prelude.hpp"

namespace cuda_sharded_clipping_test {

using namespace sharded_model;
using dtrain::ShardedOptimizer;
using dtrain::ShardedOptions;
using dtrain::StepGradients;
using dtrain::StepOptions;

/// The updates are proportional to the gradients.
const dtrain::optimizers::Momentum rule{.rate = 0.1F};

/// The squares of these gradients, and their sums, are exact in f64, so that every order of addition gives the same.
constexpr std::array max_norms{1e6, 7.0, 0.3};
constexpr int steps = max_norms.size();

double max_norm_of(int step) {
  return max_norms[static_cast<std::size_t>(step)];
}

template <class T>
std::vector<Weights<T>> clipped_on_host(int ranks, std::vector<double>& norms) {
  return weights_on_host<T>(ranks, rule, ReduceOp::sum, steps, [&](int rank, int step) {
    const auto note = [&norms, rank](const StepGradients& gradients) {
      if (rank == 0) norms.push_back(gradients.gradient_norm().norm);
      return true;
    };
    return StepOptions{.clip_norm = max_norm_of(step), .inspect = note};
  });
}

template <class T>
void expect_clipping(int ranks) {
  std::vector<double> norms;
  const std::vector<Weights<T>> expected = clipped_on_host<T>(ranks, norms);
  CHECK(norms[0] < max_norms[0]);
  CHECK(norms[1] > max_norms[1]);
  CHECK(norms[2] > max_norms[2]);
  run_well<NcclPolicy>(
      ranks,
      [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
        const auto train = [&](const ShardedOptions& stage) {
          Model<T> model;
          DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reduce_op = ReduceOp::sum}};
          ShardedOptimizer optimizer{ddp, rule, stage};
          for (int step = 0; step < steps; ++step) {
            CHECK(ddp.backward(model.backward(step, group.rank()), optimizer, {.clip_norm = max_norm_of(step)}));
            CHECK(equal_bits(model.weights(), expected[static_cast<std::size_t>(step)]));
          }
          CHECK(optimizer.steps() == steps);
        };
        train({});
        train({.early_update = true});
        train({.stage = 2});
        group.barrier();
      },
      100s);
}

TEST_CASE("clipping on devices gives the weights of the host's clipping, to the bit") {
  for (const int ranks : {1, 2, 3}) {
    if (!support::enough_devices(ranks)) {
      dtrain_test::skip("there is no device for each rank");
      continue;
    }
    CAPTURE(ranks);
    expect_clipping<float>(ranks);
    expect_clipping<bfloat16>(ranks);
  }
}

TEST_CASE("a captured step clips in each replay, and counts its update") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  const StepOptions clipped{.clip_norm = max_norms[1]};
  std::vector<double> norms;
  const std::vector<Weights<float>> expected = weights_on_host<float>(1, rule, ReduceOp::average, 5, [&](int, int) {
    StepOptions options = clipped;
    options.inspect = [&norms](const StepGradients& gradients) {
      norms.push_back(gradients.gradient_norm().norm);
      return true;
    };
    return options;
  });
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reorder_gradients = false}};
    ShardedOptimizer optimizer{ddp, rule, {.stage = 2}};
    std::size_t step = 0;
    const auto check_step = [&] {
      CAPTURE(step);
      CHECK(equal_bits(model.weights(), expected[step]));
      const double norm = norms[step++];
      const double factor = clipped.clip_norm / (norm + 1e-6);
      CHECK(factor < 1);
      CHECK(ddp.gradient_norm().before_clipping == norm);
      CHECK(ddp.gradient_norm().norm == norm * factor);
    };
    const auto eager = [&] {
      ddp.backward(model.backward(static_cast<int>(step), 0), optimizer, clipped);
      check_step();
    };
    eager();
    const support::Graph graph = captured_step(model, ddp, optimizer, clipped);
    CHECK_ERROR(ddp.gradient_norm(), Errc::invalid_argument, "captured in a CUDA graph that has not run since");
    for (int i = 0; i < 3; ++i) {
      model.block();
      model.set_gradients(static_cast<int>(step), 0);
      graph.launch(model.stream(0));
      check_step();
    }
    eager();
    CHECK(optimizer.steps() == step);
  });
}

TEST_CASE("a clip_norm that is negative or not a number is refused before a step begins") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, rule};
    const auto no_pass = [](Ready) { FAIL("the step was opened"); };
    for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
      CHECK_ERROR(ddp.backward(no_pass, {.clip_norm = bad}), Errc::invalid_argument, "backward() has a clip_norm of");
      CHECK_ERROR(ddp.backward(no_pass, optimizer, {.clip_norm = bad}), Errc::invalid_argument,
                  "backward() has a clip_norm of");
    }
    CHECK(ddp.backward(model.backward(0, 0), optimizer, {.clip_norm = 0}));
    model.block();
  });
}

#if DTRAIN_EMULATED_CUDA

TEST_CASE("clipping on devices waits for nothing, and sends one f64 for each 32 KiB of a rank's part") {
  constexpr int ranks = 2;
  const EmulatedDevices emulated(ranks);
  std::barrier together(ranks);
  run_well<NcclPolicy>(ranks, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reorder_gradients = false}};
    ShardedOptimizer optimizer{ddp, rule};
    std::size_t reduced_before = 0;
    for (const int step : {0, 1, 2}) {  // the first step connects the ranks
      const bool clips = step != 1;
      model.block();
      model.set_gradients(1, group.rank());
      const std::size_t start = emulation::traffic(group.rank()).all_reduced;
      check_waits(together, step > 0,
                  [&] { ddp.backward(pass_of(model), optimizer, {.clip_norm = clips ? 1.0 : 0.0}); });
      model.block();
      const std::size_t reduced = emulation::traffic(group.rank()).all_reduced - start;
      const std::size_t buckets = ddp.plan().buckets.size();  // of less than 32 KiB: at most one sum each
      if (step == 2) {
        CHECK(reduced > reduced_before);
        CHECK(reduced <= reduced_before + buckets * sizeof(double));
      }
      reduced_before = reduced;
    }
    group.barrier();
  });
}

#endif

}  // namespace cuda_sharded_clipping_test
