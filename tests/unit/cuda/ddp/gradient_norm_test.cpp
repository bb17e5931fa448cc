// ctest: TIMEOUT 240
// The norm of gradients in device memory: its value, its bits on all ranks, clipping, graphs, and wrong use.

#include "dtrain/ddp/reduction/cuda/cuda_bucket_norms.hpp"

#include "dtrain/core/config.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "dtrain/backend/nccl.hpp"
#include "dtrain/backend/staged.hpp"
#include "dtrain/core/types/bfloat16.hpp"
#include "dtrain/core/types/float16.hpp"
#include "dtrain/ddp/precision/loss_scaler.hpp"
#include "dtrain/distributed_data_parallel.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"
#include "dtrain/launch/per_process.hpp"
#include "support/gate.hpp"
#include "support/graph_replays.hpp"
#include "support/nccl_rank.hpp"
#include "support/thread_group.hpp"

namespace {

using dtrain::bfloat16;
using dtrain::DistributedDataParallel;
using dtrain::DType;
using dtrain::float16;
using dtrain::GradientNorm;
using dtrain::Ready;
using dtrain::StepOptions;
using dtrain::TensorView;
using dtrain::stream::cuda::Stream;
using support::check;
using support::DeviceBuffer;
using support::RankEnd;
using support::run_groups;

using NcclPolicy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Nccl>;
using StagedPolicy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Staged<dtrain::backend::SharedMemory>>;

constexpr StepOptions measured{.measure_norm = true};

/// Gradients of four types, of which two streams produce two each.
class Model {
 public:
  static constexpr dtrain::DeviceKind device_kind = dtrain::DeviceKind::cuda;

  Model() : device_{dtrain::DeviceKind::cuda, dtrain::stream::cuda::current_device()} {
    add<float>("matrix", 70'001);
    add<bfloat16>("brain", 3'001);
    add<float16>("half", 33);
    add<double>("scale", 7);
    add<float>("bias", 0);
  }

  const std::vector<dtrain::Parameter>& parameters() const { return list_; }

  /// Every gradient is random, but the last element of each is `last` if that is given.
  void backward(unsigned seed, Ready ready, const float* last = nullptr) {
    std::mt19937 random(seed);
    fill<float>(0, random, last);
    fill<bfloat16>(1, random, last);
    fill<float16>(2, random, last);
    fill<double>(3, random, last);
    for (const std::size_t i : {3u, 1u, 0u, 2u, 4u}) {
      if (!bytes_[i].empty()) {
        check(cudaMemcpyAsync(list_[i].gradient.data, bytes_[i].data(), bytes_[i].size(), cudaMemcpyHostToDevice,
                              stream_of(i).native()),
              "cudaMemcpyAsync");
      }
      ready(i, stream_of(i).handle());
    }
  }

  support::StreamRef stream_of(std::size_t i) const { return streams_[i % 2].ref(); }

  void block() const {
    for (const Stream& stream : streams_) {
      dtrain::stream::cuda::Event event;
      stream.ref().record(event);
      CHECK(event.block_until_complete(dtrain::Deadline::after(std::chrono::seconds(20))) ==
            dtrain::stream::WaitResult::complete);
    }
  }

  /// Blocking: the bytes of a gradient, for what comes next on its stream.
  std::vector<std::byte> gradient(std::size_t i) const {
    block();
    return support::on_host<std::byte>(list_[i].gradient.data, list_[i].gradient.bytes());
  }

  /// Blocking: the norm by the host's kernel.
  double norm() const {
    double sum = 0;
    for (std::size_t i = 0; i < list_.size(); ++i)
      sum += dtrain::kernels::sum_of_squares(list_[i].gradient.dtype, gradient(i).data(),
                                             list_[i].gradient.shape.element_count());
    return std::sqrt(sum);
  }

 protected:
  std::vector<dtrain::Parameter> list_;

 private:
  template <class T>
  void add(const char* name, std::size_t count) {
    values_.push_back(support::on_device(std::vector<T>(count, T(1.0F))));
    gradients_.push_back(support::on_device(std::vector<T>(count, T(0.0F))));
    bytes_.emplace_back(count * sizeof(T));
    const dtrain::Shape shape{static_cast<std::int64_t>(count)};
    const DType dtype = dtrain::dtype_of<T>::value;
    list_.push_back(
        {name, {values_.back().data(), shape, dtype, device_}, {gradients_.back().data(), shape, dtype, device_}});
  }

  template <class T>
  void fill(std::size_t i, std::mt19937& random, const float* last) {
    block();  // the copy of the step before has run
    std::normal_distribution<float> normal;
    std::vector<T> values(bytes_[i].size() / sizeof(T));
    for (T& value : values)
      value = T(normal(random));
    if (last != nullptr) values.back() = T(*last);
    std::memcpy(bytes_[i].data(), values.data(), bytes_[i].size());
  }

  dtrain::Device device_;
  std::vector<DeviceBuffer> values_;
  std::vector<DeviceBuffer> gradients_;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<Stream> streams_ = std::vector<Stream>(2);
};

struct BindingModel : Model {
  using Model::Model;
  void bind_gradient(std::size_t i, const TensorView& view) { list_[i].gradient = view; }
};

/// One parameter of whole numbers.
struct Counts {
  static constexpr dtrain::DeviceKind device_kind = dtrain::DeviceKind::cuda;
  DeviceBuffer value = support::on_device(std::vector<std::int32_t>{1, 2});
  DeviceBuffer gradient = support::on_device(std::vector<std::int32_t>{3, 4});
  Stream stream;
  std::vector<dtrain::Parameter> parameters() const {
    const dtrain::Device device{dtrain::DeviceKind::cuda, dtrain::stream::cuda::current_device()};
    return {{"table", {value.data(), {2}, DType::i32, device}, {gradient.data(), {2}, DType::i32, device}}};
  }
};

template <class Policy, class Body>
void run_ranks(int ranks, Body body) {
  for (const RankEnd& end : run_groups<Policy>(ranks, body))
    CHECK(end.text == "");
}

unsigned seed_of(const auto& group, unsigned step) {
  return 100 * step + static_cast<unsigned>(group.rank());
}

template <class Policy, class AnyModel>
void expect_norms(int ranks, std::size_t bucket_bytes) {
  std::vector<std::vector<double>> norms(static_cast<std::size_t>(ranks));
  std::atomic<int> wrong{0};
  run_ranks<Policy>(ranks, [&](const dtrain::ProcessGroup<Policy>& group) {
    AnyModel model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = bucket_bytes}};
    for (unsigned k = 0; k < 4; ++k) {
      ddp.backward([&](Ready ready) { model.backward(seed_of(group, k), ready); }, {.measure_norm = k != 2});
      wrong += ddp.has_gradient_norm() == (k != 2) ? 0 : 1;
      if (k == 2) continue;
      const GradientNorm norm = ddp.gradient_norm();
      wrong += norm.finite && std::abs(norm.norm / model.norm() - 1) < 1e-12 ? 0 : 1;
      wrong += ddp.gradient_norm().norm == norm.norm ? 0 : 1;
      norms[static_cast<std::size_t>(group.rank())].push_back(norm.norm);
    }
    group.barrier();
  });
  CHECK(wrong == 0);
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
  std::atomic<int> wrong{0};
  run_ranks<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model;
    DistributedDataParallel ddp{model, group};
    unsigned k = 0;
    for (const float last : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1.0F}) {
      const float* given = group.rank() == 1 ? &last : nullptr;
      ddp.backward([&](Ready ready) { model.backward(seed_of(group, k++), ready, given); }, measured);
      wrong += ddp.gradient_norm().finite == (last == 1.0F) ? 0 : 1;
      if (ddp.gradient_norm().finite) continue;
      const std::vector<std::byte> before = model.gradient(0);
      dtrain::clip_gradients(ddp, 1e-3);  // leaves them
      wrong += model.gradient(0) == before ? 0 : 1;
    }
    group.barrier();
  });
  CHECK(wrong == 0);
}

TEST_CASE("clipping multiplies each type's gradients, between what the streams did before and do after") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  std::atomic<int> wrong{0};
  const auto body = [&]<class AnyModel>(const dtrain::ProcessGroup<NcclPolicy>& group, AnyModel model) {
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 4096}};
    for (unsigned k = 0; k < 3; ++k) {
      ddp.backward([&](Ready ready) { model.backward(seed_of(group, k), ready); }, measured);
      const double norm = model.norm();
      wrong += std::abs(dtrain::clip_gradients(ddp, 2 * norm).norm / norm - 1) < 1e-12 ? 0 : 1;
      const std::vector<std::byte> whole = model.gradient(0);
      const TensorView& view = model.parameters()[0].gradient;
      dtrain::stream::cuda::PinnedBuffer before(view.bytes());
      dtrain::stream::cuda::PinnedBuffer after(view.bytes());
      const auto read = [&](const dtrain::stream::cuda::PinnedBuffer& to) {
        check(cudaMemcpyAsync(to.data(), view.data, view.bytes(), cudaMemcpyDeviceToHost, model.stream_of(0).native()),
              "cudaMemcpyAsync");
      };
      support::enqueue_delay(model.stream_of(0), std::chrono::milliseconds(20));
      read(before);
      wrong += std::abs(dtrain::clip_gradients(ddp, 0.5).norm / norm - 1) < 1e-12 ? 0 : 1;
      read(after);
      wrong += std::abs(ddp.gradient_norm().norm - 0.5) < 1e-5 ? 0 : 1;
      wrong += std::abs(model.norm() - 0.5) < 1e-3 ? 0 : 1;  // 16-bit gradients are rounded
      std::vector<float> values(whole.size() / sizeof(float));
      std::memcpy(values.data(), whole.data(), whole.size());
      wrong += std::equal(whole.begin(), whole.end(), before.data()) ? 0 : 1;
      const auto factor = static_cast<float>(0.5 / (norm + 1e-6));
      const auto* const clipped = reinterpret_cast<const float*>(after.data());
      for (std::size_t i = 0; i < values.size(); ++i)
        wrong += std::abs(clipped[i] - values[i] * factor) <= 1e-6F * std::abs(values[i]) ? 0 : 1;
    }
    group.barrier();
  };
  run_ranks<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    body(group, Model());
    body(group, BindingModel());
  });
  CHECK(wrong == 0);
}

TEST_CASE("a loss scaler divides gradients on the device, and skips the step of an overflow, on all ranks alike") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  std::atomic<int> wrong{0};
  run_ranks<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model;
    DistributedDataParallel ddp{model, group};
    dtrain::LossScaler scaler({.initial_scale = 64, .growth_interval = 2});
    const float infinite = std::numeric_limits<float>::infinity();
    std::vector<float> scales;
    for (unsigned k = 0; k < 4; ++k) {
      const float* last = k == 1 && group.rank() == 0 ? &infinite : nullptr;
      ddp.backward([&](Ready ready) { model.backward(seed_of(group, k), ready, last); }, measured);
      const double before = ddp.gradient_norm().norm;
      const float scale = scaler.scale();
      wrong += scaler.step(ddp) == (k != 1) ? 0 : 1;
      wrong += k == 1 || std::abs(model.norm() * scale / before - 1) < 1e-6 ? 0 : 1;
      scales.push_back(scaler.scale());
    }
    wrong += scales == std::vector<float>{64, 32, 32, 64} ? 0 : 1;
    group.barrier();
  });
  CHECK(wrong == 0);
}

TEST_CASE("only the step that reduces measures, and without a measurement the norm is refused") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  run_ranks<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model;
    DistributedDataParallel ddp{model, group};
    const auto step = [&](StepOptions options) {
      ddp.backward([&](Ready ready) { model.backward(1, ready); }, options);
    };
    const auto expect_refused = [&] {
      CHECK_FALSE(ddp.has_gradient_norm());
      CHECK_THROWS_WITH_AS(ddp.gradient_norm(), doctest::Contains("measure_norm = true"), dtrain::Error);
      CHECK_THROWS_WITH_AS(ddp.scale_gradients(2), doctest::Contains("measure_norm = true"), dtrain::Error);
    };
    expect_refused();
    {
      const auto held = ddp.no_sync();
      step(measured);
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
  run_ranks<NcclPolicy>(1, [](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Counts model;
    DistributedDataParallel ddp{model, group, {.reduce_op = dtrain::ReduceOp::sum}};
    CHECK_THROWS_WITH_AS(ddp.backward([](Ready) { FAIL("the step was opened"); }, measured),
                         doctest::Contains("measure_norm, but there is no kernel for gradients of i32"), dtrain::Error);
    ddp.backward([&](Ready ready) { ready(0, model.stream.ref().handle()); });
  });
}

TEST_CASE("each replay of a captured step measures") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  for (const int warm_up : {0, 1}) {
    for (const bool bound : {false, true}) {
      CAPTURE(warm_up);
      CAPTURE(bound);
      support::CudaTrainingRank rank(std::make_shared<support::FakeJob>(1), 0, 1,
                                     {.caps = {256, 2048}, .bound = bound});
      const auto step = [&] {
        dtrain::Step open = rank.reducer->begin("begin()", measured);
        for (std::size_t i = rank.count(); i-- > 0;) {
          rank.compute(i, rank.stream());
          open.ready(i, rank.stream().handle());
        }
        open.finish();
      };
      const auto expected = [&](float value) {
        std::size_t elements = 0;
        for (std::size_t i = 0; i < rank.count(); ++i)
          elements += rank.size(i);
        return static_cast<double>(value) * std::sqrt(static_cast<double>(elements));
      };
      for (int k = 0; k < warm_up; ++k)
        step();
      REQUIRE(rank.wait());
      check(cudaStreamBeginCapture(rank.stream().native(), cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
      step();
      cudaGraph_t captured = nullptr;
      check(cudaStreamEndCapture(rank.stream().native(), &captured), "cudaStreamEndCapture");
      const support::Graph graph(captured);
      CHECK_THROWS_WITH_AS(rank.reducer->gradient_norm(),
                           doctest::Contains("captured in a CUDA graph that has not run"), dtrain::Error);
      for (const float value : {2.0F, 3.0F, std::numeric_limits<float>::infinity(), 4.0F}) {
        for (std::size_t i = 0; i < rank.count(); ++i)
          rank.prepare(i, value);
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
      const auto prepare = [&](float value) {
        for (std::size_t i = 0; i < rank.count(); ++i)
          rank.prepare(i, value);
      };
      prepare(5);
      step();  // not captured
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
    const auto captured_step = [&] {
      dtrain::Step open = rank.reducer->begin("begin()", measured);
      for (std::size_t i = rank.count(); i-- > 0;) {
        rank.compute(i, rank.stream());
        open.ready(i, rank.stream().handle());
      }
      open.finish();
    };
    const auto step_of_sevens = [&](StepOptions options) {
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
    for (std::size_t i = 0; i < rank.count(); ++i)
      rank.prepare(i, 2.0F);
    check(cudaStreamBeginCapture(rank.stream().native(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    captured_step();
    cudaGraph_t captured = nullptr;
    check(cudaStreamEndCapture(rank.stream().native(), &captured), "cudaStreamEndCapture");
    const support::Graph graph(captured);
    for (const bool measures : {true, false, true}) {
      CAPTURE(measures);
      support::Gate gate;
      support::enqueue_on_host(rank.stream(), [&] { gate.pass(); });
      graph.launch(rank.stream());
      step_of_sevens({.measure_norm = measures});
      CHECK(rank.reducer->has_gradient_norm() == measures);  // the replay has not begun
      gate.open();
      if (measures) CHECK(norm_is(7));
      REQUIRE(rank.wait());
      CHECK(rank.reducer->has_gradient_norm() == measures);
      if (measures) {
        CHECK(norm_is(7));
      } else {
        CHECK_THROWS_WITH_AS(rank.reducer->gradient_norm(), doctest::Contains("measure_norm = true"), dtrain::Error);
      }
      graph.launch(rank.stream());  // behind the step
      REQUIRE(rank.wait());
      CHECK(rank.reducer->has_gradient_norm());
      CHECK(norm_is(2));
    }
  }
}

#if DTRAIN_EMULATED_CUDA

TEST_CASE("a driver that does not load the kernel refuses the measurement before the step, which then works without") {
  REQUIRE(support::enough_devices(1));
  run_ranks<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model;
    {
      constexpr int copies = 4;                            // of each type, launched first
      emulation::fail("cuLaunchKernel", copies + 1, 209);  // CUDA_ERROR_NO_BINARY_FOR_GPU
      DistributedDataParallel ddp{model, group};
      CHECK_THROWS_WITH_AS(ddp.backward([](Ready) { FAIL("the step was opened"); }, measured),
                           doctest::Contains("backward() has measure_norm, but there is no kernel for gradients of"),
                           dtrain::Error);
      ddp.backward([&](Ready ready) { model.backward(2, ready); });
      CHECK_FALSE(ddp.has_gradient_norm());
    }
    DistributedDataParallel ddp{model, group};
    ddp.backward([&](Ready ready) { model.backward(2, ready); }, measured);
    CHECK(std::abs(ddp.gradient_norm().norm / model.norm() - 1) < 1e-12);
  });
}

TEST_CASE("a step launches a kernel for each bucket if it measures, else none, and waits no more for it") {
  REQUIRE(support::enough_devices(1));
  support::CudaTrainingRank rank(std::make_shared<support::FakeJob>(1), 0, 1, {.bound = true});  // nothing is copied
  const int buckets = static_cast<int>(rank.reducer->plan().buckets.size());
  struct Calls {
    int waits;
    int records;
    int host_waits;
    bool operator==(const Calls&) const = default;
  };
  const auto calls_of_step = [&](StepOptions options) {
    const Calls before{emulation::waits(), emulation::records(), emulation::host_waits()};
    dtrain::Step open = rank.reducer->begin("begin()", options);
    for (std::size_t i = rank.count(); i-- > 0;)
      open.ready(i, rank.stream().handle());
    open.finish();
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
  refuse_launch(buckets + 1);
  CHECK(calls_of_step(measured) == without);
  const dtrain::stream::cuda::PinnedBuffer sum(sizeof(double));
  const auto launches = [&] {
    auto* const to = reinterpret_cast<double*>(sum.data());
    return dtrain::stream::cuda::SquareSumKernel::load(DType::f32, to, rank.stream());
  };
  CHECK_FALSE(launches());  // the first one after those of the buckets
  refuse_launch(1);
  CHECK(calls_of_step({}) == without);
  CHECK_FALSE(launches());
  emulation::reset();
  REQUIRE(rank.wait());
}

#endif
