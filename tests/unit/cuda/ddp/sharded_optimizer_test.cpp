// ctest: TIMEOUT 240
// ShardedOptimizer on a device: the bits of the host's, no waits of the host, norms, no_sync, and wrong use.

#include "support/sanitized.hpp"
#include "unit/cuda/ddp/sharded_model.hpp"
#include "unit/cuda/prelude.hpp"

namespace cuda_sharded_optimizer_test {

using namespace sharded_model;
using dtrain::ShardedOptimizer;
using dtrain::ShardedOptions;
namespace optimizers = dtrain::optimizers;

/// Averages of two ranks' gradients are exact, those of three are not.
ReduceOp op_of(int ranks) {
  return ranks == 3 ? ReduceOp::sum : ReduceOp::average;
}

/// Steps after which a rank's weights differ from the expected ones.
template <class T, class Policy, class Rule>
int wrong_steps(int ranks, const Rule& rule, const ShardedOptions& stage, const std::vector<Weights<T>>& expected,
                dtrain::DdpOptions options = {.bucket_bytes = 3000}) {
  std::atomic<int> wrong{0};
  options.reduce_op = op_of(ranks);
  run_well<Policy>(
      ranks,
      [&](const dtrain::ProcessGroup<Policy>& group) {
        Model<T> model;
        DistributedDataParallel ddp{model, group, options};
        ShardedOptimizer optimizer{ddp, rule, stage};
        for (std::size_t step = 0; step < expected.size(); ++step) {
          ddp.backward(model.backward(static_cast<int>(step), group.rank()), optimizer);
          wrong += equal_bits(model.weights(), expected[step]) ? 0 : 1;
        }
        wrong += optimizer.steps() == expected.size() ? 0 : 1;
        group.barrier();
      },
      200s);
  return wrong;
}

template <class T, class Policy, class Rule>
void expect_bits(int ranks, int steps, const Rule& rule) {
  const std::vector<Weights<T>> expected = weights_on_host<T>(ranks, rule, op_of(ranks), steps);
  CHECK(wrong_steps<T, Policy>(ranks, rule, {}, expected) == 0);
  CHECK(wrong_steps<T, Policy>(ranks, rule, {.stage = 2}, expected) == 0);
  const std::vector<Weights<T>> few(expected.begin(), expected.begin() + 3);
  CHECK(wrong_steps<T, Policy>(ranks, rule, {.early_update = true}, few) == 0);
  CHECK(wrong_steps<T, Policy>(ranks, rule, {.stage = 2, .early_update = true}, few) == 0);
}

TEST_CASE("steps on devices over NCCL give the weights that the host's optimizer gives, to the bit") {
  for (const int ranks : {1, 2, 3}) {
    if (!support::enough_devices(ranks)) {
      dtrain_test::skip("there is no device for each rank");
      continue;
    }
    CAPTURE(ranks);
    expect_bits<float, NcclPolicy>(ranks, 50, optimizers::AdamW{.rate = 0.01F});
    expect_bits<bfloat16, NcclPolicy>(ranks, 50, optimizers::AdamW{.rate = 0.01F});
    expect_bits<float, NcclPolicy>(ranks, 5, optimizers::Momentum{.rate = 0.1F, .nesterov = true});
    expect_bits<float16, NcclPolicy>(ranks, 5, optimizers::Sgd{.rate = 0.1F, .weight_decay = 0.01F});
  }
}

TEST_CASE("ranks that share a device give the same weights, staged through the host's memory") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  ::setenv("DTRAIN_SHARE_DEVICES", "1", 1);
  expect_bits<float, StagedPolicy>(2, 5, optimizers::AdamW{.rate = 0.01F});
  expect_bits<bfloat16, StagedPolicy>(2, 5, optimizers::AdamW{.rate = 0.01F});
  ::unsetenv("DTRAIN_SHARE_DEVICES");
}

/// Averages of 0 or 0.5: a gradient of one rank that is not ready counts as zeros.
TEST_CASE("gradients that come against the order of the buckets, after a pass without sync, or not at all") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  const optimizers::AdamW rule{.rate = 0.01F};
  const auto train = [&](const dtrain::ProcessGroup<NcclPolicy>& group, const ShardedOptions& stage, bool in_order) {
    Model<float> model;
    DistributedDataParallel ddp{
        model, group, {.bucket_bytes = 3000, .reorder_gradients = false, .allow_unused_parameters = true}};
    ShardedOptimizer optimizer{ddp, rule, stage};
    std::vector<Weights<float>> all;
    for (int step = 0; step < 4; ++step) {
      const std::size_t left_out = step == 2 ? 4 : step == 3 && group.rank() == 1 ? 1 : ~std::size_t{0};
      if (step == 1) {
        const auto held = ddp.no_sync();
        ddp.backward(model.backward(77, group.rank()));
      }
      ddp.backward(
          [&](Ready ready) {
            model.block();
            model.set_gradients(step, group.rank());
            for (std::size_t n = 0; n < model.parameters().size(); ++n) {
              const std::size_t i = in_order ? model.parameters().size() - 1 - n : n;
              if (i != left_out) model.compute(i, ready);
            }
          },
          optimizer);
      all.push_back(model.weights());
    }
    group.barrier();
    return all;
  };
  run_well<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    const std::vector<Weights<float>> expected = train(group, {}, true);
    for (const bool in_order : {true, false}) {
      CAPTURE(in_order);
      const auto equal = [&](const std::vector<Weights<float>>& seen) {
        return std::equal(seen.begin(), seen.end(), expected.begin(), expected.end(), equal_bits<float>);
      };
      CHECK(equal(train(group, {}, in_order)));
      CHECK(equal(train(group, {.stage = 2}, in_order)));
    }
  });
}

TEST_CASE("in stage 2 later work of a stream may use a gradient's memory when ready() has returned") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  const optimizers::AdamW rule{.rate = 0.01F};
  const std::vector<Weights<float>> expected = weights_on_host<float>(2, rule, ReduceOp::average, 4);
  for (const bool in_order : {true, false}) {
    CAPTURE(in_order);
    run_well<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
      Model<float> model;
      DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000}};
      ShardedOptimizer optimizer{ddp, rule, {.stage = 2}};
      const DeviceBuffer scratch(2049 * sizeof(float));
      std::vector<PinnedBuffer> sources;
      for (const std::size_t size : sizes())
        sources.emplace_back((size + 1) * sizeof(float));
      for (int step = 0; step < 4; ++step) {
        ddp.backward(
            [&](Ready ready) {
              model.block();
              for (std::size_t n = 0; n < sources.size(); ++n) {
                const std::size_t i = in_order ? sources.size() - 1 - n : n;
                const std::vector<float> values = sharded_model::gradient<float>(step, group.rank(), i, model.size(i));
                TensorView gradient = model.parameters()[i].gradient;
                gradient.data = scratch.data();
                if (!values.empty()) {
                  std::memcpy(sources[i].data(), values.data(), gradient.bytes());
                  check(cudaMemcpyAsync(gradient.data, sources[i].data(), gradient.bytes(), cudaMemcpyHostToDevice,
                                        model.stream(0).native()),
                        "cudaMemcpyAsync");
                }
                ready(i, gradient, model.stream(0).handle());
              }
            },
            optimizer);
        CHECK(equal_bits(model.weights(), expected[static_cast<std::size_t>(step)]));
      }
      group.barrier();
    });
  }
}

TEST_CASE("a function that inspects the gradients gets their norm, may scale them, and may refuse the update") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  const optimizers::AdamW rule{.rate = 0.01F};
  std::vector<double> norms;  // of rank 0
  const auto scale = [](dtrain::StepGradients& gradients) {
    gradients.scale(0.25);  // exact: the norms of the host's kernel differ in their last bits
    return gradients.gradient_norm().norm;
  };
  const std::vector<Weights<float>> expected =
      weights_on_host<float>(2, rule, ReduceOp::average, 4, [&](int rank, int step) {
        return dtrain::StepOptions{.inspect = [&norms, scale, rank, step](dtrain::StepGradients& gradients) {
          const double norm = scale(gradients);
          if (rank == 0) norms.push_back(norm);
          return step != 1;
        }};
      });
  REQUIRE(norms.size() == 4);
  run_well<NcclPolicy>(
      2,
      [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
        const auto train = [&](const ShardedOptions& stage, bool in_order = true) {
          Model<float> model;
          DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reorder_gradients = false}};
          ShardedOptimizer optimizer{ddp, rule, stage};
          for (std::size_t step = 0; step < 4; ++step) {
            double norm = 0;
            const auto pass = [&](Ready ready) {
              model.block();
              model.set_gradients(static_cast<int>(step), group.rank());
              for (std::size_t n = 0; n < model.parameters().size(); ++n)
                model.compute(in_order ? model.parameters().size() - 1 - n : n, ready);
            };
            const auto inspect = [&](dtrain::StepGradients& gradients) {
              norm = scale(gradients);
              return step != 1;
            };
            CHECK(ddp.backward(pass, optimizer, {.inspect = inspect}) == (step != 1));
            CHECK(equal_bits(model.weights(), expected[step]));
            CHECK(std::abs(norm / norms[step] - 1) < 1e-12);
            CHECK(ddp.gradient_norm().norm == (step != 1 ? norm : 4 * norm));  // not scaled, if not used
          }
          CHECK(optimizer.steps() == 3);
          group.barrier();
        };
        train({});
        train({.early_update = true});
        train({.stage = 2});
        train({.stage = 2}, false);
      },
      200s);
}

TEST_CASE("state is 1 / ranks of the rule's and of the f32 weights, and parts of buckets are all there is beside it") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  run_well<NcclPolicy>(2, [&]<class P>(const dtrain::ProcessGroup<P>& group) {
    Model<bfloat16> model;
    std::size_t elements = 0;
    for (const std::size_t size : sizes())
      elements += size;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000}};
    ShardedOptimizer optimizer{ddp, optimizers::AdamW{}};
    const double share = 12.0 * static_cast<double>(elements) / 2;
    const double rounding = 12.0 * 32 * static_cast<double>(ddp.plan().buckets.size());
    CHECK(std::abs(static_cast<double>(optimizer.state_bytes()) - share) <= rounding);
    std::size_t largest = 0;
    for (const auto& bucket : ddp.plan().buckets)
      largest = std::max(largest, bucket.bytes);
    CHECK(optimizer.gradient_bytes() <= ddp.plan().arena_bytes + largest + 64 * sizeof(float));
    group.barrier();
  });
}

TEST_CASE("what an optimizer of device memory does not take is refused in a sentence") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<double> model;
    DistributedDataParallel ddp{model, group};
    CHECK_ERROR((ShardedOptimizer{ddp, optimizers::AdamW{}}), Errc::unsupported,
                "ShardedOptimizer got parameter 0 'p0', of f64 on cuda:0; it takes f32, f16 and bf16 on cuda:0");
  });
}

/// A rule of the host with another formula than its base.
struct SlowAdam : optimizers::AdamW {
  void operator()(std::span<float> weights, std::span<const float> gradients, State state,
                  const dtrain::StepInfo& info) const {
    optimizers::AdamW slow = *this;
    slow.rate /= 2;
    slow(weights, gradients, state, info);
  }
};

/// A rule that a program writes: it launches kernels, here a copy and the kernel of another rule.
struct ThroughRule {
  struct State {
    std::span<float> last;
  };
  void enqueue(const BufferView& weights, const BufferView& gradients, std::span<const BufferView> states,
               const dtrain::DeviceStepInfo& info, StreamRef stream) const {
    CHECK(info.step > 0);
    check(cudaMemcpyAsync(states[0].data, gradients.data, gradients.bytes(), cudaMemcpyDeviceToDevice, stream.native()),
          "cudaMemcpyAsync");
    dtrain::ddp::enqueue_rule(optimizers::Sgd{.rate = 0.5F}, weights, states[0], {}, info, stream);
  }
};

TEST_CASE("a program's own rule enqueues work on buffers of the device") {
  static_assert(dtrain::ddp::DeviceRule<ThroughRule>);
  static_assert(!dtrain::ddp::OptimizerRule<ThroughRule>);
  static_assert(!dtrain::ddp::DeviceRule<optimizers::Lamb>);
  static_assert(dtrain::ddp::OptimizerRule<SlowAdam>);
  static_assert(!dtrain::ddp::DeviceRule<SlowAdam>, "the kernel of its base would run");
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  const std::vector<Weights<bfloat16>> expected =
      weights_on_host<bfloat16>(2, optimizers::Sgd{.rate = 0.5F}, ReduceOp::average, 3);
  CHECK(wrong_steps<bfloat16, NcclPolicy>(2, ThroughRule{}, {}, expected) == 0);
}

TEST_CASE("16-bit values that move are read behind the streams that may write them, and end in a timeout") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  enum class Busy { reading, default_stream, writing };
  for (const Busy busy_one : {Busy::reading, Busy::default_stream, Busy::writing}) {
    CAPTURE(static_cast<int>(busy_one));
    const Stream stream, writing;
    Model<bfloat16> model;
    std::uint64_t moves = 0;
    const auto read_value = [&](std::size_t i) {
      return dtrain::ddp::PresentValue{model.parameters()[i].value, moves, writing.ref().handle()};
    };
    const dtrain::ddp::BucketPlan plan =
        dtrain::ddp::plan_buckets(dtrain::ddp::gradient_sizes(model.parameters()), {0, 0});
    dtrain::ddp::DeviceShards shards(model.parameters(), plan, 0, 1, 2, read_value, stream.ref(), 500ms);
    support::Gate gate;
    const StreamHandle handles[] = {stream.ref().handle(), {stream.ref().device(), nullptr}, writing.ref().handle()};
    with_stream(handles[static_cast<int>(busy_one)],
                [&](StreamRef busy) { support::enqueue_on_host(busy, [&] { gate.pass(); }); });
    ++moves;
    CHECK_ERROR(shards.renew_values(), Errc::timeout, "were not copied to f32 in time");
    gate.open();
    CHECK(completes(stream.ref()));
    CHECK(completes(writing.ref()));
  }
}

TEST_CASE("an optimizer that goes while its step cannot run leaves its memory to the step") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  if (support::is_sanitized) return dtrain_test::skip("the memory is leaked on purpose");
  const optimizers::Momentum rule{.rate = 0.1F};
  const std::vector<Weights<float>> expected = weights_on_host<float>(1, rule, ReduceOp::average, 1);
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.reorder_gradients = false}};
    support::Gate gate;
    {
      ShardedOptimizer optimizer{ddp, rule};
      model.set_gradients(0, 0);
      support::enqueue_on_host(model.stream(0), [&] { gate.pass(); });
      ddp.backward(
          [&](Ready ready) {
            for (std::size_t i = model.parameters().size(); i-- > 0;)
              model.compute(i, ready);
          },
          optimizer);
    }
    gate.open();
    CHECK(equal_bits(model.weights(), expected[0]));
  });
}

#if DTRAIN_EMULATED_CUDA

TEST_CASE("a step waits for no device, and the host for nothing of it") {
  for (const int ranks : {1, 2}) {
    const EmulatedDevices emulated(ranks);
    std::barrier together(ranks);
    const auto train = [&](const dtrain::ProcessGroup<NcclPolicy>& group, const ShardedOptions& stage) {
      Model<float> model;
      DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reorder_gradients = false}};
      ShardedOptimizer optimizer{ddp, optimizers::AdamW{}, stage};
      for (int step = 0; step < 3; ++step) {
        model.block();
        model.set_gradients(step, group.rank());
        together.arrive_and_wait();
        const int devices = emulation::device_waits();
        const int hosts = emulation::host_waits();
        together.arrive_and_wait();
        ddp.backward(
            [&](Ready ready) {
              for (std::size_t i = model.parameters().size(); i-- > 0;)
                model.compute(i, ready);
            },
            optimizer);
        together.arrive_and_wait();
        if (step > 0) {  // in stage 2 the first step may allocate side buffers
          CHECK(emulation::device_waits() == devices);
          CHECK(emulation::host_waits() == hosts);
        }
        together.arrive_and_wait();
      }
      model.block();
      group.barrier();
    };
    run_well<NcclPolicy>(ranks, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
      train(group, {});
      train(group, {.stage = 2});
    });
  }
}

TEST_CASE("a driver that does not load the kernels refuses the optimizer on construction, and steps go on without") {
  const EmulatedDevices emulated(1);
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group};
    emulation::fail("cuLaunchKernel", 1, 209);  // CUDA_ERROR_NO_BINARY_FOR_GPU
    CHECK_ERROR((ShardedOptimizer{ddp, optimizers::AdamW{}}), Errc::unsupported,
                "ShardedOptimizer needs kernels that the driver of cuda:0 does not load");
    emulation::fail("cuLaunchKernel", 1, 209);
    CHECK_ERROR((ShardedOptimizer{ddp, optimizers::AdamW{}, {.stage = 2}}), Errc::unsupported,
                "use an optimizer with all");
    ddp.backward(model.backward(0, 0));
    ShardedOptimizer optimizer{ddp, optimizers::AdamW{}};
    ddp.backward(model.backward(1, 0), optimizer);
    model.block();
  });
}

TEST_CASE("if one rank's device has no kernels or no memory, every rank learns that there is no optimizer") {
  const auto ends_with = [](const char* function, int error) {
    const EmulatedDevices emulated(2);
    return run_groups<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
      Model<float> model;
      DistributedDataParallel ddp{model, group};
      if (group.rank() == 0) emulation::fail(function, 1, error, 0);
      ShardedOptimizer optimizer{ddp, optimizers::AdamW{}};
    });
  };
  for (const RankEnd& end : ends_with("cuLaunchKernel", 209))  // CUDA_ERROR_NO_BINARY_FOR_GPU
    CHECK_CONTAINS(end.text, "without its kernels, which the driver does not load");
  const std::vector<RankEnd> ends = ends_with("cudaMalloc", 2);  // cudaErrorMemoryAllocation
  CHECK_CONTAINS(ends[0].text, "cudaMalloc");
  CHECK_CONTAINS(ends[1].text, "a ShardedOptimizer that cannot be made");
}

TEST_CASE("a rank that fails or hangs in the middle of a step ends the others with a cause") {
  const auto train = [](const dtrain::ProcessGroup<NcclPolicy>& group, emulation::Fault fault,
                        const ShardedOptions& stage) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reorder_gradients = false}};
    ShardedOptimizer optimizer{ddp, optimizers::AdamW{}, stage};
    for (int step = 0; step < 100; ++step) {
      if (step == 2 && group.rank() == 1) {
        optimizer.wait();
        emulation::fault_in_operation(fault, 4, 1);
      }
      ddp.backward(model.backward(step, group.rank()), optimizer);
      if (step >= 2) optimizer.wait();
    }
  };
  for (const bool hangs : {false, true}) {
    const EmulatedDevices emulated(2);
    const std::vector<RankEnd> ends = run_groups<NcclPolicy>(
        2,
        [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
          hangs ? train(group, emulation::Fault::hang, {}) : train(group, emulation::Fault::async_error, {.stage = 2});
        },
        90s);
    for (const RankEnd& end : ends)
      CHECK(end.text != "");
  }
}

#endif  // DTRAIN_EMULATED_CUDA

}  // namespace cuda_sharded_optimizer_test
