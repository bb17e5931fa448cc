// ctest: TIMEOUT 240
// The norm of gradients in device memory: its value, its bits on all ranks, clipping, graphs, and wrong use.

#include "dtrain/ddp/precision/loss_scaler.hpp"
#include "dtrain/ddp/reduction/cuda/cuda_bucket_norms.hpp"
#include "unit/cuda/ddp/device_model.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::GradientNorm;
using dtrain::StepOptions;

const StepOptions measured{.measure_norm = true};

/// Whether the latest step that reduced has measured.
bool has_norm(const auto& ddp) {
  return dtrain::ddp::DriverAccess::of(ddp).reducer->norms().is_measured();
}

/// Gradients of four types, of which two streams produce two each.
class Model : public DeviceModel {
 public:
  Model() : DeviceModel(2) {
    add<float>("matrix", 70'001, 1);
    add<bfloat16>("brain", 3'001, bfloat16(1.0F));
    add<float16>("half", 33, float16(1.0F));
    add<double>("scale", 7, 1);
    add<float>("bias", 0, 1);
  }

  /// Every gradient is random, but the last element of each is `last` if that is given.
  void backward(unsigned seed, Ready ready, const float* last = nullptr) {
    std::mt19937 random(seed);
    block();  // the copies of the step before have run
    prepare_random<float>(0, random, last);
    prepare_random<bfloat16>(1, random, last);
    prepare_random<float16>(2, random, last);
    prepare_random<double>(3, random, last);
    for (const std::size_t i : {3u, 1u, 0u, 2u, 4u})
      compute(i, ready);
  }

  /// Blocking: the norm by the host's kernel.
  double norm() const {
    double sum = 0;
    for (std::size_t i = 0; i < list_.size(); ++i)
      sum += dtrain::kernels::sum_of_squares(list_[i].gradient.dtype, gradient(i).data(), size(i));
    return std::sqrt(sum);
  }
};

using BindingModel = Binding<Model>;

unsigned seed_of(const auto& group, unsigned step) {
  return 100 * step + static_cast<unsigned>(group.rank());
}

template <class Policy, class AnyModel>
void expect_norms(int ranks, std::size_t bucket_bytes) {
  std::vector<std::vector<double>> norms(static_cast<std::size_t>(ranks));
  run_well<Policy>(ranks, [&](const dtrain::ProcessGroup<Policy>& group) {
    AnyModel model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = bucket_bytes}};
    for (unsigned k = 0; k < 4; ++k) {
      ddp.backward([&](Ready ready) { model.backward(seed_of(group, k), ready); }, {.measure_norm = k != 2});
      CHECK(has_norm(ddp) == (k != 2));
      if (k == 2) continue;
      const GradientNorm norm = ddp.gradient_norm();
      CHECK((norm.finite && std::abs(norm.norm / model.norm() - 1) < 1e-12));
      CHECK(ddp.gradient_norm().norm == norm.norm);
      norms[static_cast<std::size_t>(group.rank())].push_back(norm.norm);
    }
    group.barrier();
  });
  for (const std::vector<double>& of_rank : norms) {
    CHECK(of_rank.size() == 3);
    CHECK(of_rank == norms[0]);
  }
}

}  // namespace

TEST_CASE("the norm over NCCL is that of the reduced gradients, with the same bits on all ranks") {
  for (const int ranks : {1, 2, 4}) {
    if (!support::enough_devices(ranks)) {
      dtrain_test::skip("there is no device for each rank");
      continue;
    }
    for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{25} << 20}) {
      CAPTURE(ranks);
      CAPTURE(bucket_bytes);
      expect_norms<NcclPolicy, Model>(ranks, bucket_bytes);
      expect_norms<NcclPolicy, BindingModel>(ranks, bucket_bytes);
    }
  }
}

TEST_CASE("the norm of gradients that pass through host memory is measured on the device too") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  ::setenv("DTRAIN_SHARE_DEVICES", "1", 1);
  expect_norms<StagedPolicy, Model>(2, 4096);
  expect_norms<StagedPolicy, BindingModel>(2, std::size_t{25} << 20);
  ::unsetenv("DTRAIN_SHARE_DEVICES");
}

TEST_CASE("an infinity or a NaN on one rank makes the norm of all not finite, and only of that step") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  run_well<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model;
    DistributedDataParallel ddp{model, group};
    unsigned k = 0;
    for (const float last : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1.0F}) {
      const float* given = group.rank() == 1 ? &last : nullptr;
      ddp.backward([&](Ready ready) { model.backward(seed_of(group, k++), ready, given); }, measured);
      CHECK(ddp.gradient_norm().finite == (last == 1.0F));
      if (ddp.gradient_norm().finite) continue;
      const std::vector<std::byte> before = model.gradient(0);
      ddp.clip_gradients(1e-3);  // leaves them
      CHECK(model.gradient(0) == before);
    }
    group.barrier();
  });
}

TEST_CASE("clipping multiplies each type's gradients, between what the streams did before and do after") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  const auto body = [&]<class AnyModel>(const dtrain::ProcessGroup<NcclPolicy>& group, AnyModel model) {
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 4096}};
    for (unsigned k = 0; k < 3; ++k) {
      ddp.backward([&](Ready ready) { model.backward(seed_of(group, k), ready); }, measured);
      const double norm = model.norm();
      ddp.clip_gradients(2 * norm);
      CHECK(std::abs(ddp.gradient_norm().norm / norm - 1) < 1e-12);
      const std::vector<std::byte> whole = model.gradient(0);
      const TensorView& view = model.parameters()[0].gradient;
      dtrain::stream::cuda::PinnedBuffer before(view.bytes());
      dtrain::stream::cuda::PinnedBuffer after(view.bytes());
      const auto read = [&](const dtrain::stream::cuda::PinnedBuffer& to) {
        check(cudaMemcpyAsync(to.data(), view.data, view.bytes(), cudaMemcpyDeviceToHost, model.stream(0).native()),
              "cudaMemcpyAsync");
      };
      support::enqueue_delay(model.stream(0), std::chrono::milliseconds(20));
      read(before);
      ddp.clip_gradients(0.5);
      read(after);
      CHECK(std::abs(ddp.gradient_norm().norm - 0.5) < 1e-5);
      CHECK(std::abs(ddp.gradient_norm().before_clipping / norm - 1) < 1e-12);
      CHECK(std::abs(model.norm() - 0.5) < 1e-3);  // 16-bit gradients are rounded
      std::vector<float> values(whole.size() / sizeof(float));
      std::memcpy(values.data(), whole.data(), whole.size());
      CHECK(std::equal(whole.begin(), whole.end(), before.data()));
      const auto factor = static_cast<float>(0.5 / (norm + 1e-6));
      const std::span clipped(reinterpret_cast<const float*>(after.data()), values.size());
      CHECK(std::ranges::equal(clipped, values, [factor](float value, float before_it) {
        return std::abs(value - before_it * factor) <= 1e-6F * std::abs(before_it);
      }));
    }
    group.barrier();
  };
  run_well<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    body(group, Model());
    body(group, BindingModel());
  });
}

TEST_CASE("a loss scaler divides gradients on the device, and skips the step of an overflow, on all ranks alike") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  run_well<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model;
    DistributedDataParallel ddp{model, group};
    dtrain::LossScaler scaler({.initial_scale = 64, .growth_interval = 2});
    const float infinite = std::numeric_limits<float>::infinity();
    std::vector<float> scales;
    for (unsigned k = 0; k < 4; ++k) {
      const float* last = k == 1 && group.rank() == 0 ? &infinite : nullptr;
      const auto pass = [&](Ready ready) { model.backward(seed_of(group, k), ready, last); };
      CHECK(ddp.backward(pass, measured));
      const double before = ddp.gradient_norm().norm;
      const float scale = scaler.scale();
      CHECK(ddp.backward(pass, {.scaler = &scaler}) == (k != 1));
      CHECK(ddp.gradient_norm().finite == (k != 1));
      CHECK((k == 1 || std::abs(ddp.gradient_norm().norm * scale / before - 1) < 1e-12));
      CHECK((k == 1 || std::abs(model.norm() * scale / before - 1) < 1e-6));
      scales.push_back(scaler.scale());
    }
    CHECK(scales == std::vector<float>{64, 32, 32, 64});
    group.barrier();
  });
}

TEST_CASE("only the step that reduces measures, and without a measurement the norm is refused") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model;
    DistributedDataParallel ddp{model, group};
    const auto step = [&](const StepOptions& options) {
      return ddp.backward([&](Ready ready) { model.backward(1, ready); }, options);
    };
    const auto expect_refused = [&] {
      CHECK_FALSE(has_norm(ddp));
      CHECK_THROWS_WITH_AS(ddp.gradient_norm(), doctest::Contains("StepOptions::measure_norm"), dtrain::Error);
      CHECK_THROWS_WITH_AS(ddp.scale_gradients(2), doctest::Contains("StepOptions::measure_norm"), dtrain::Error);
    };
    expect_refused();
    {
      const auto held = ddp.no_sync();
      CHECK_FALSE(step(measured));
    }
    expect_refused();
    step(measured);
    CHECK(ddp.gradient_norm().norm > 0);
    step({});
    expect_refused();
  });
}

TEST_CASE("gradients of whole numbers have no norm: the step is refused before it opens, and then works without") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  run_well<NcclPolicy>(1, [](const dtrain::ProcessGroup<NcclPolicy>& group) {
    WholeNumbers model;
    DistributedDataParallel ddp{model, group, {.reduce_op = dtrain::ReduceOp::sum}};
    CHECK_THROWS_WITH_AS(ddp.backward([](Ready) { FAIL("the step was opened"); }, measured),
                         doctest::Contains("options that need the norm, but there is no kernel for gradients of i32"),
                         dtrain::Error);
    ddp.backward([&](Ready ready) { ready(0, model.stream().handle()); });
  });
}

TEST_CASE("a reducer is there when the kernels that load its kernels have run: a graph does not wait for them") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  std::atomic<bool> constructed{false};
  std::atomic<bool> came_too_early{false};
  support::NcclRank opened(std::make_shared<support::FakeJob>(1), 0, 1, "ddp");
  support::enqueue_on_host(opened.stream.ref(), [&] {  // in front of these kernels
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (!constructed && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    came_too_early = constructed.load();
  });
  support::CudaTrainingRank rank(std::move(opened), {});
  constructed = true;
  REQUIRE(support::completes(rank.nccl.stream.ref()));
  CHECK_FALSE(came_too_early);
}

TEST_CASE("each replay of a captured step measures") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  for (const int warm_up : {0, 1}) {
    for (const bool bound : {false, true}) {
      CAPTURE(warm_up);
      CAPTURE(bound);
      support::CudaTrainingRank rank(std::make_shared<support::FakeJob>(1), 0, 1,
                                     {.caps = {256, 2048}, .bound = bound});
      const auto expected = [&](float value) {
        std::size_t elements = 0;
        for (std::size_t i = 0; i < rank.count(); ++i)
          elements += rank.size(i);
        return static_cast<double>(value) * std::sqrt(static_cast<double>(elements));
      };
      for (int k = 0; k < warm_up; ++k)
        rank.computed_step(measured);
      REQUIRE(rank.wait());
      const Graph graph = captured(rank.stream(), [&] { rank.computed_step(measured); });
      CHECK_THROWS_WITH_AS(rank.reducer->gradient_norm(),
                           doctest::Contains("captured in a CUDA graph that has not run"), dtrain::Error);
      for (const float value : {2.0F, 3.0F, std::numeric_limits<float>::infinity(), 4.0F}) {
        rank.prepare_all(value);
        graph.launch(rank.stream());
        REQUIRE(rank.wait());
        CHECK(rank.reducer->gradient_norm().finite == (value < 100));
        if (value > 100) continue;
        CHECK(std::abs(rank.reducer->gradient_norm().norm / expected(value) - 1) < 1e-12);
        rank.reducer->scale_gradients(0.5);
        CHECK(std::abs(rank.reducer->gradient_norm().norm / expected(value / 2) - 1) < 1e-12);
        rank.use(1, rank.stream());
        REQUIRE(rank.wait());
        CHECK(rank.result(1) == std::vector<float>(rank.size(1), value / 2));
      }
      const auto prepare = [&](float value) { rank.prepare_all(value); };
      prepare(5);
      rank.computed_step(measured);  // not captured
      CHECK(std::abs(rank.reducer->gradient_norm().norm / expected(5) - 1) < 1e-12);
      for (const float value : {6.0F, 7.0F}) {
        prepare(value);
        graph.launch(rank.stream());
        REQUIRE(rank.wait());
        CHECK(std::abs(rank.reducer->gradient_norm().norm / expected(value) - 1) < 1e-12);
      }
    }
  }
}

TEST_CASE("a step behind a replay that still runs has its own norm, or none if it does not measure") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  for (const bool warms_up : {false, true}) {
    CAPTURE(warms_up);
    support::CudaTrainingRank rank(std::make_shared<support::FakeJob>(1), 0, 1, {.caps = {256, 2048}});
    double elements = 0;
    std::vector<DeviceBuffer> sevens;
    for (std::size_t i = 0; i < rank.count(); ++i) {
      elements += static_cast<double>(rank.size(i));
      sevens.push_back(support::on_device(std::vector<float>(rank.size(i), 7.0F)));
    }
    const auto norm_is = [&](float value) {
      const double expected = static_cast<double>(value) * std::sqrt(elements);
      return std::abs(rank.reducer->gradient_norm().norm / expected - 1) < 1e-12;
    };
    const auto step_of_sevens = [&](const StepOptions& options) {
      dtrain::Step open = rank.reducer->begin("begin()", options);
      for (std::size_t i = rank.count(); i-- > 0;) {
        TensorView gradient = rank.parameters[i].gradient;
        gradient.data = sevens[i].data();
        open.ready(i, gradient, rank.stream().handle());
      }
      open.finish();
    };
    if (warms_up) step_of_sevens({});
    REQUIRE(rank.wait());
    rank.prepare_all(2.0F);
    check(cudaStreamBeginCapture(rank.stream().native(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    rank.computed_step(measured);
    cudaGraph_t captured = nullptr;
    check(cudaStreamEndCapture(rank.stream().native(), &captured), "cudaStreamEndCapture");
    const support::Graph graph(captured);
    for (const bool measures : {true, false, true}) {
      CAPTURE(measures);
      support::Gate gate;
      support::enqueue_on_host(rank.stream(), [&] { gate.pass(); });
      graph.launch(rank.stream());
      step_of_sevens({.measure_norm = measures});
      CHECK(rank.reducer->norms().is_measured() == measures);  // the replay has not begun
      gate.open();
      if (measures) CHECK(norm_is(7));
      REQUIRE(rank.wait());
      CHECK(rank.reducer->norms().is_measured() == measures);
      if (measures) {
        CHECK(norm_is(7));
      } else {
        CHECK_THROWS_WITH_AS(rank.reducer->gradient_norm(), doctest::Contains("StepOptions::measure_norm"),
                             dtrain::Error);
      }
      graph.launch(rank.stream());  // behind the step
      REQUIRE(rank.wait());
      CHECK(rank.reducer->norms().is_measured());
      CHECK(norm_is(2));
    }
  }
}

#if DTRAIN_EMULATED_CUDA

TEST_CASE("a driver that does not load the kernel refuses the measurement before the step, which then works without") {
  REQUIRE(support::enough_devices(1));
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model;
    {
      constexpr int copies = 4;                            // of each type, launched first
      emulation::fail("cuLaunchKernel", copies + 1, 209);  // CUDA_ERROR_NO_BINARY_FOR_GPU
      DistributedDataParallel ddp{model, group};
      CHECK_THROWS_WITH_AS(
          ddp.backward([](Ready) { FAIL("the step was opened"); }, measured),
          doctest::Contains("backward() has options that need the norm, but there is no kernel for gradients of"),
          dtrain::Error);
      ddp.backward([&](Ready ready) { model.backward(2, ready); });
      CHECK_FALSE(has_norm(ddp));
    }
    DistributedDataParallel ddp{model, group};
    ddp.backward([&](Ready ready) { model.backward(2, ready); }, measured);
    CHECK(std::abs(ddp.gradient_norm().norm / model.norm() - 1) < 1e-12);
  });
}

TEST_CASE("a step that measures launches a kernel for each bucket and one more, else none, and waits no more for it") {
  REQUIRE(support::enough_devices(1));
  support::CudaTrainingRank rank(std::make_shared<support::FakeJob>(1), 0, 1, {.bound = true});  // nothing is copied
  const int buckets = static_cast<int>(rank.reducer->plan().buckets.size());
  struct Calls {
    int waits;
    int records;
    int host_waits;
    bool operator==(const Calls&) const = default;
  };
  const auto calls_of_step = [&](const StepOptions& options) {
    const Calls before{emulation::waits(), emulation::records(), emulation::host_waits()};
    rank.step(options);
    const Calls calls{emulation::waits() - before.waits, emulation::records() - before.records,
                      emulation::host_waits() - before.host_waits};
    REQUIRE(rank.wait());
    return calls;
  };
  const auto refuse_launch = [](int nth) {
    emulation::reset();
    REQUIRE(support::enough_devices(1));
    emulation::fail("cuLaunchKernel", nth, 209);  // CUDA_ERROR_NO_BINARY_FOR_GPU
  };
  calls_of_step({});
  refuse_launch(1);
  const Calls without = calls_of_step({});
  refuse_launch(buckets + 2);
  CHECK(calls_of_step(measured) == without);
  const dtrain::stream::cuda::PinnedBuffer sum(sizeof(double));
  const auto launches = [&] {
    auto* const to = reinterpret_cast<double*>(sum.data());
    return dtrain::stream::cuda::SquareSumKernel::load(DType::f32, to, rank.stream());
  };
  CHECK_FALSE(launches());  // the first one after those of the step
  refuse_launch(1);
  CHECK(calls_of_step({}) == without);
  CHECK_FALSE(launches());
  emulation::reset();
  REQUIRE(rank.wait());
}

#endif
