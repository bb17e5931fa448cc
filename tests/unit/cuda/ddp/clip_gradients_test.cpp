// ctest: TIMEOUT 240
// Clipping and loss scaling on the device: the host's bits on any number of ranks, no wait, graphs, and overflows.

#include "dtrain/ddp/checkpoint/checkpoint.hpp"
#include "dtrain/ddp/precision/device_loss_scaler.hpp"
#include "dtrain/ddp/precision/loss_scaler.hpp"
#include "dtrain/ddp/reduction/cuda/cuda_bucket_norms.hpp"
#include "support/temporary_directory.hpp"
#include "unit/cuda/ddp/device_model.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::DeviceLossScaler;
using dtrain::GradientNorm;
using dtrain::StepOptions;

const StepOptions measured{.measure_norm = true};

/// Random gradients of f32 and bf16, which two streams produce.
class Model : public DeviceModel {
 public:
  Model() : DeviceModel(2) {
    add<float>("matrix", 20'001, 1);
    add<bfloat16>("brain", 3'001, bfloat16(1.0F));
    add<float>("bias", 7, 1);
    add<bfloat16>("table", 40'000, bfloat16(1.0F));
  }

  /// @param last given: the last element of each gradient
  void backward(unsigned seed, Ready ready, const float* last = nullptr) {
    std::mt19937 random(seed);
    block();  // the copies of the step before have run
    for (std::size_t i = 0; i < list_.size(); ++i)
      is_float(i) ? prepare_random<float>(i, random, last) : prepare_random<bfloat16>(i, random, last);
    for (std::size_t i = list_.size(); i-- > 0;)
      compute(i, ready);
  }

  /// Blocking: all gradients' bytes.
  std::vector<std::vector<std::byte>> all() const {
    std::vector<std::vector<std::byte>> bytes;
    for (std::size_t i = 0; i < list_.size(); ++i)
      bytes.push_back(gradient(i));
    return bytes;
  }

  /// As the host multiplies them.
  std::vector<std::vector<std::byte>> times(std::vector<std::vector<std::byte>> bytes, double factor) const {
    for (std::size_t i = 0; i < list_.size() && factor != 1; ++i)
      dtrain::ddp::multiply_elements({bytes[i].data(), size(i), list_[i].gradient.dtype, {}}, factor);
    return bytes;
  }

  bool is_float(std::size_t i) const { return i % 2 == 0; }
};

using BindingModel = Binding<Model>;

unsigned seed_of(const auto& group, unsigned step) {
  return 10 * step + static_cast<unsigned>(group.rank());
}

/// Each step twice: its gradients are read, and multiplied by the host; and the device clips.
template <class AnyModel>
void expect_the_hosts_clipping(int ranks, std::size_t bucket_bytes) {
  std::vector<std::vector<std::vector<std::byte>>> clipped(static_cast<std::size_t>(ranks));
  run_well<NcclPolicy>(ranks, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    AnyModel model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = bucket_bytes}};
    for (unsigned k = 0; k < 4; ++k) {
      CAPTURE(k);
      const auto step = [&](const StepOptions& options) {
        CHECK(ddp.backward([&](Ready ready) { model.backward(seed_of(group, k), ready); }, options));
      };
      step(measured);
      const GradientNorm before = ddp.gradient_norm();
      const auto gradients = model.all();
      const double max_norm = k == 1 ? 2 * before.norm : 0.5 + k;
      const double factor = dtrain::ddp::clipping_factor(before, max_norm);
      CHECK((factor < 1) == (k != 1));
      for (const bool by_options : {true, false}) {
        step(by_options ? StepOptions{.clip_norm = max_norm} : measured);
        if (!by_options) ddp.clip_gradients(max_norm);
        CHECK(model.all() == model.times(gradients, factor));
        CHECK(ddp.gradient_norm().norm == before.norm * factor);
        CHECK(ddp.gradient_norm().before_clipping == before.norm);
      }
      ddp.clip_gradients(max_norm / 2);  // again, by the present norm
      CHECK(std::abs(ddp.gradient_norm().norm - max_norm / 2) < 1e-5);
      CHECK(ddp.gradient_norm().before_clipping == before.norm);
      ddp.scale_gradients(-3);
      CHECK(std::abs(ddp.gradient_norm().norm - 1.5 * max_norm) < 1e-5);
      CHECK(ddp.gradient_norm().before_clipping == before.norm * 3);
      ddp.clip_gradients(max_norm);
      CHECK(std::abs(ddp.gradient_norm().norm - max_norm) < 1e-5);
      clipped[static_cast<std::size_t>(group.rank())] = model.all();
    }
    group.barrier();
  });
  for (const auto& of_rank : clipped)
    CHECK(of_rank == clipped[0]);
}

/// Beside a host's scaler, with the same gradients; rank 0 overflows twice.
void expect_the_hosts_scaler(int ranks) {
  const support::TemporaryDirectory folder;
  const std::string path = folder.path + "/checkpoint";
  run_well<NcclPolicy>(ranks, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model;
    Model other;
    DistributedDataParallel ddp{model, group};
    DistributedDataParallel expected{other, group};
    const dtrain::LossScalerOptions options{.initial_scale = 48, .growth_factor = 3, .growth_interval = 2};
    DeviceLossScaler scaler(options);
    dtrain::LossScaler hosts(options);
    const std::vector<dtrain::ddp::NamedTensor> state = scaler.state();
    for (unsigned k = 0; k < 8; ++k) {
      CAPTURE(k);
      const float infinite = std::numeric_limits<float>::infinity();
      const float* last = (k == 1 || k == 5) && group.rank() == 0 ? &infinite : nullptr;
      const auto pass = [&](Ready ready) { model.backward(seed_of(group, k), ready, last); };
      CHECK(ddp.backward(pass, {.clip_norm = 1.5, .scaler = &scaler}));
      const auto others = [&](Ready ready) { other.backward(seed_of(group, k), ready, last); };
      expected.backward(others, measured);
      const auto gradients = other.all();
      const double by_scale = 1.0 / static_cast<double>(hosts.scale());
      const double clipping = dtrain::ddp::clipping_factor(expected.gradient_norm().times(by_scale), 1.5);
      const bool steps = expected.backward(others, {.clip_norm = 1.5, .scaler = &hosts});
      CHECK(other.all() == other.times(gradients, steps ? by_scale * clipping : 1));
      CHECK(model.all() == other.all());
      CHECK(support::on_host<float>(reinterpret_cast<const std::byte*>(ddp.found_inf()), 1)[0] == (steps ? 0 : 1));
      CHECK(support::on_host<float>(reinterpret_cast<const std::byte*>(scaler.scale()), 1)[0] == hosts.scale());
      CHECK(ddp.gradient_norm().finite == steps);
      if (steps) {
        CHECK(ddp.gradient_norm().norm == expected.gradient_norm().norm);
        CHECK(ddp.gradient_norm().before_clipping == expected.gradient_norm().before_clipping);
      }
      CHECK(state[0].name == hosts.state()[0].name);
      CHECK(state[1].name == hosts.state()[1].name);
      CHECK(support::on_host<std::int64_t>(state[1].value.data, 1)[0] ==
            *reinterpret_cast<const std::int64_t*>(hosts.state()[1].value.data));
    }
    dtrain::LossScaler loaded;
    dtrain::save_checkpoint(group, path, scaler.state());
    CHECK(dtrain::load_checkpoint(group, path, loaded.state()));
    CHECK(loaded.scale() == hosts.scale());
    const DeviceLossScaler fresh;
    dtrain::save_checkpoint(group, path, hosts.state());
    CHECK(dtrain::load_checkpoint(group, path, fresh.state()));
    CHECK(support::on_host<float>(reinterpret_cast<const std::byte*>(fresh.scale()), 1)[0] == hosts.scale());
    group.barrier();
  });
}

#if DTRAIN_EMULATED_CUDA

/// A fused optimizer's kernel: weights -= gradients, where *found_inf is 0.
void enqueue_update(support::StreamRef stream, const TensorView& weights, const TensorView& gradients,
                    const float* found_inf) {
  emulation::launch(stream.native(), [=] {
    auto* const values = emulation::host_address(reinterpret_cast<float*>(weights.data));
    const auto* const by = emulation::host_address(reinterpret_cast<const float*>(gradients.data));
    if (*emulation::host_address(found_inf) != 0) return;
    for (std::size_t i = 0; i < weights.shape.element_count(); ++i)
      values[i] -= by[i];
  });
}

#endif

}  // namespace

TEST_CASE("the device clips to the bits of the host's clipping, on any number of ranks") {
  for (const int ranks : {1, 2, 3}) {
    if (!support::enough_devices(ranks)) {
      dtrain_test::skip("there is no device for each rank");
      continue;
    }
    for (const std::size_t bucket_bytes : {std::size_t{4096}, std::size_t{25} << 20}) {
      CAPTURE(ranks);
      CAPTURE(bucket_bytes);
      expect_the_hosts_clipping<Model>(ranks, bucket_bytes);
      expect_the_hosts_clipping<BindingModel>(ranks, bucket_bytes);
    }
  }
}

TEST_CASE("the scaler on the device has the scales and gradients of the host's, and gradients that overflow stay") {
  for (const int ranks : {1, 2}) {
    if (!support::enough_devices(ranks)) {
      dtrain_test::skip("there is no device for each rank");
      continue;
    }
    CAPTURE(ranks);
    expect_the_hosts_scaler(ranks);
  }
}

TEST_CASE("a captured step clips in each replay") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  for (const int warm_up : {0, 1}) {
    for (const auto& kind : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
      const bool bound = kind.first;
      const bool by_options = kind.second;
      CAPTURE(warm_up);
      CAPTURE(bound);
      CAPTURE(by_options);
      support::CudaTrainingRank rank(std::make_shared<support::FakeJob>(1), 0, 1,
                                     {.caps = {256, 2048}, .bound = bound, .streams = 2});
      double elements = 0;
      for (std::size_t i = 0; i < rank.count(); ++i)
        elements += static_cast<double>(rank.size(i));
      const auto step = [&](double max_norm) {
        rank.computed_step(by_options ? StepOptions{.clip_norm = max_norm} : measured);
        if (!by_options) rank.reducer->scale_gradients(1, max_norm);
        rank.use_all();
      };
      for (int k = 0; k < warm_up; ++k)
        step(1e9);
      REQUIRE(rank.wait());
      const double max_norm = 100;
      const Graph graph = captured(rank.stream(), [&] { step(max_norm); });
      CHECK_THROWS_WITH_AS(rank.reducer->gradient_norm(),
                           doctest::Contains("captured in a CUDA graph that has not run"), dtrain::Error);
      const auto expect_replays = [&] {
        for (const float value : {2.0F, 30.0F, std::numeric_limits<float>::infinity(), 4.0F}) {
          CAPTURE(value);
          rank.prepare_all(value);
          graph.launch(rank.stream());
          REQUIRE(rank.wait());
          const bool is_finite = value < 100;
          const double norm = static_cast<double>(value) * std::sqrt(elements);
          CHECK(rank.reducer->gradient_norm().finite == is_finite);
          const double factor = std::min(1.0, max_norm / (norm + 1e-6));
          if (!is_finite) CHECK(rank.result(1)[0] == value);
          if (!is_finite) continue;
          CHECK(std::abs(rank.result(1)[0] / (value * static_cast<float>(factor)) - 1) < 1e-6F);
          CHECK(std::abs(rank.reducer->gradient_norm().before_clipping / norm - 1) < 1e-12);
          CHECK(std::abs(rank.reducer->gradient_norm().norm / (norm * factor) - 1) < 1e-12);
        }
      };
      expect_replays();
      rank.reducer->scale_gradients(1, 1);  // outside the graph: by the replay's norm
      CHECK(std::abs(rank.reducer->gradient_norm().norm - 1) < 1e-6);
      rank.prepare_all(5);
      step(1);  // outside the graph, too
      REQUIRE(rank.wait());
      CHECK(std::abs(rank.reducer->gradient_norm().before_clipping / (5 * std::sqrt(elements)) - 1) < 1e-12);
      CHECK(std::abs(rank.result(1)[0] * std::sqrt(elements) - 1) < 1e-5);
      expect_replays();
    }
  }
}

TEST_CASE("clipping may be captured without its step") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  support::CudaTrainingRank rank(std::make_shared<support::FakeJob>(1), 0, 1, {.caps = {256, 2048}});
  double elements = 0;
  for (std::size_t i = 0; i < rank.count(); ++i)
    elements += static_cast<double>(rank.size(i));
  std::unique_ptr<const Graph> graph;
  for (const float value : {3.0F, 5.0F}) {
    rank.prepare_all(value);
    rank.computed_step(measured);
    if (!graph) {
      graph.reset(new Graph(captured(rank.stream(), [&] {
        rank.reducer->scale_gradients(1, 2);
        rank.use_all();
      })));
    }
    graph->launch(rank.stream());
    REQUIRE(rank.wait());
    CHECK(std::abs(rank.result(1)[0] * std::sqrt(elements) - 2) < 1e-5);
    CHECK(std::abs(rank.reducer->gradient_norm().norm - 2) < 1e-5);
    CHECK(std::abs(rank.reducer->gradient_norm().before_clipping / (static_cast<double>(value) * std::sqrt(elements)) -
                   1) < 1e-12);
  }
}

TEST_CASE("clipping needs a measured norm and a positive one to clip to") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model;
    DistributedDataParallel ddp{model, group};
    const auto expect_refused = [&] {
      CHECK_THROWS_WITH_AS(ddp.clip_gradients(1), doctest::Contains("StepOptions::measure_norm"), dtrain::Error);
    };
    expect_refused();
    ddp.backward([&](Ready ready) { model.backward(1, ready); }, measured);
    for (const double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()})
      CHECK_THROWS_WITH_AS(ddp.clip_gradients(bad), doctest::Contains("clip_gradients has a max_norm of"),
                           dtrain::Error);
    ddp.clip_gradients(1);
    ddp.backward([&](Ready ready) { model.backward(1, ready); });
    expect_refused();
    CHECK_THROWS_WITH_AS(DeviceLossScaler({.growth_factor = 1}), doctest::Contains("growth_factor 1"), dtrain::Error);
  });
}

TEST_CASE("a scaler on another device than the gradients is refused, and the step stays usable") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  run_well<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    const int own = current_device();
    check(cudaSetDevice(1 - own), "cudaSetDevice");
    DeviceLossScaler elsewhere({.initial_scale = 4});
    check(cudaSetDevice(own), "cudaSetDevice");
    DeviceLossScaler scaler({.initial_scale = 4});
    Model model;
    DistributedDataParallel ddp{model, group};
    const auto pass = [&](Ready ready) { model.backward(1, ready); };
    ddp.backward(pass, measured);
    const double norm = ddp.gradient_norm().norm;
    const std::string sentence = "its scale on cuda:" + std::to_string(1 - own) +
                                 ", and the gradients are on cuda:" + std::to_string(own) +
                                 "; make the scaler after cudaSetDevice";
    CHECK_THROWS_WITH_AS(ddp.backward([](Ready) { FAIL("the step was opened"); }, {.scaler = &elsewhere}),
                         doctest::Contains(sentence.c_str()), dtrain::Error);
    CHECK(ddp.gradient_norm().norm == norm);
    ddp.backward(pass, {.scaler = &scaler});
    CHECK(ddp.gradient_norm().norm == norm / 4);
    group.barrier();
  });
}

TEST_CASE("a factor multiplies f64 gradients, although the product with their norm is infinite") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    DeviceModel model;
    model.add<double>("matrix", 2, 1);
    DistributedDataParallel ddp{model, group};
    constexpr double element = 9e153;
    constexpr double factor = 1.5e154;
    model.prepare<double>(0, {element, -element});
    ddp.backward([&](Ready ready) { model.compute(0, ready); }, measured);
    CHECK(ddp.gradient_norm().finite);
    ddp.scale_gradients(factor);
    CHECK(model.gradient<double>(0) == std::vector<double>{element * factor, -element * factor});
  });
}

#if DTRAIN_EMULATED_CUDA

TEST_CASE("an overflow on one rank leaves the weights of all as they are, eager and captured") {
  for (const int ranks : {1, 2, 3}) {
    for (const bool captures : {false, true}) {
      CAPTURE(ranks);
      CAPTURE(captures);
      const EmulatedDevices emulated(ranks);
      const auto job = std::make_shared<FakeJob>(ranks);
      std::vector<std::vector<float>> weights(static_cast<std::size_t>(ranks));
      std::barrier phases(ranks);
      run_thread_ranks(ranks, [&](RankThread& self) {
        CudaTrainingRank rank(job, self.rank(), ranks, {.caps = {256, 2048}});
        const DeviceBuffer memory = support::on_device(std::vector<float>(rank.size(1), 1.0F));
        TensorView values = rank.parameters[1].gradient;
        values.data = memory.data();
        const auto step = [&] {
          rank.computed_step({.clip_norm = 0.5});
          enqueue_update(rank.stream(), values, rank.parameters[1].gradient, rank.reducer->norms().found_inf());
        };
        std::unique_ptr<const Graph> graph;
        phases.arrive_and_wait();
        if (captures) graph.reset(new Graph(captured(rank.stream(), step)));
        phases.arrive_and_wait();
        float before = 1;
        for (const float last : {2.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
                                 -std::numeric_limits<float>::infinity(), 3.0F}) {
          CAPTURE(last);
          rank.prepare_all(self.rank() == ranks - 1 ? last : 2.0F);
          captures ? graph->launch(rank.stream()) : step();
          REQUIRE(rank.wait());
          const std::vector<float> after = support::on_host<float>(memory.data(), rank.size(1));
          const bool overflows = !(std::abs(last) < 100);
          CHECK((after[0] == before) == overflows);
          CHECK(after == std::vector<float>(after.size(), after[0]));
          before = after[0];
          weights[static_cast<std::size_t>(self.rank())].push_back(before);
        }
      });
      for (const std::vector<float>& of_rank : weights)
        CHECK(of_rank == weights[0]);
    }
  }
}

TEST_CASE("a driver that does not load a kernel of norms refuses the measurement, and a scaler") {
  REQUIRE(support::enough_devices(1));
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model;
    for (const int nth :
         {3 + 1, 3 + 3, 3 + 4}) {  // after the copies of f32 and bf16: each sum, multiplication, the norm
      CAPTURE(nth);
      emulation::fail("cuLaunchKernel", nth, 209);  // CUDA_ERROR_NO_BINARY_FOR_GPU
      DistributedDataParallel ddp{model, group};
      CHECK_THROWS_WITH_AS(ddp.backward([](Ready) { FAIL("the step was opened"); }, measured),
                           doctest::Contains("backward() has options that need the norm, but there is no kernel"),
                           dtrain::Error);
    }
    emulation::fail("cuLaunchKernel", 1, 209);
    CHECK_THROWS_WITH_AS(DeviceLossScaler(),
                         doctest::Contains("does not load the kernel of DeviceLossScaler on cuda:0"), dtrain::Error);
    const DeviceLossScaler works;
  });
}

#else

TEST_CASE("an overflow on one rank leaves the weights of all as they are, eager and captured") {
  dtrain_test::skip("the kernel that updates the weights is the emulation's");
}

#endif
