// ctest: TIMEOUT 240
// ClipGradients: clipping in a step with a ShardedOptimizer on devices has the bits of the host's, and waits for
// nothing.

#include "unit/cuda/ddp/sharded_model.hpp"
#include "unit/cuda/prelude.hpp"

namespace cuda_sharded_clipping_test {

using namespace sharded_model;
using dtrain::ClipGradients;
using dtrain::ShardedOptimizer;
using dtrain::ShardedOptions;

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
  return weights_on_host<T>(ranks, rule, ReduceOp::sum, steps,
                            [&](int rank, int step, dtrain::ShardedGradients& gradients) {
                              if (rank == 0) norms.push_back(gradients.gradient_norm().norm);
                              return ClipGradients(max_norm_of(step))(gradients);
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
            ddp.backward(model.backward(step, group.rank()), optimizer, ClipGradients(max_norm_of(step)));
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
  const double max_norm = max_norms[1];
  const std::vector<Weights<float>> expected = weights_on_host<float>(
      1, rule, ReduceOp::average, 5,
      [&](int, int, dtrain::ShardedGradients& gradients) { return ClipGradients(max_norm)(gradients); });
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reorder_gradients = false}};
    ShardedOptimizer optimizer{ddp, rule, {.stage = 2}};
    std::size_t step = 0;
    const auto eager = [&] {
      ddp.backward(model.backward(static_cast<int>(step), 0), optimizer, ClipGradients(max_norm));
      CHECK(equal_bits(model.weights(), expected[step++]));
    };
    eager();
    const support::Graph graph = captured_step(model, ddp, optimizer, ClipGradients(max_norm));
    for (int i = 0; i < 3; ++i) {
      model.block();
      model.set_gradients(static_cast<int>(step), 0);
      graph.launch(model.stream(0));
      CHECK(equal_bits(model.weights(), expected[step++]));
    }
    eager();
    CHECK(optimizer.steps() == step);
  });
}

TEST_CASE("a max_norm that is not positive is refused before a step begins") {
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()})
    CHECK_ERROR(ClipGradients(bad), Errc::invalid_argument, "max_norm that is not positive");
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
      check_waits(together, step > 0, [&] {
        clips ? ddp.backward(pass_of(model), optimizer, ClipGradients(1.0)) : ddp.backward(pass_of(model), optimizer);
      });
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
