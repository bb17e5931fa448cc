// A ShardedOptimizer on devices connects the ranks when it is constructed: its steps make no connection and allocate
// nothing, the first one neither.

#include "dtrain/ddp/sharded/sharded_optimizer.hpp"
#include "unit/cuda/ddp/device_model.hpp"
#include "unit/cuda/prelude.hpp"

#if DTRAIN_EMULATED_CUDA

namespace cuda_sharded_connection_test {

using dtrain::ShardedOptimizer;
using dtrain::ShardedOptions;
using dtrain::StepOptions;
namespace optimizers = dtrain::optimizers;

template <bool in_caller>
using Policy = dtrain::Policy<dtrain::launch::PerProcess,
                              dtrain::backend::NcclWith<dtrain::backend::NcclOptions{.launches_in_caller = in_caller}>>;

/// A rest without blocks, small blocks and large ones; and many small blocks, which are large when gathered together.
const std::vector<std::size_t> of_all_sizes{10, 640, 8'000, 100'000};
const std::vector<std::size_t> of_one_size(8, 10'000);

/// A bucket for each parameter.
const dtrain::DdpOptions options{.bucket_bytes = 100, .first_bucket_bytes = 100, .reorder_gradients = false};

/// Weights of 0; each gradient is `gradient`.
struct Model : DeviceModel {
  Model(const std::vector<std::size_t>& sizes, float gradient) {
    for (const std::size_t count : sizes) {
      add<float>(("p" + std::to_string(list_.size())).c_str(), count, 0);
      prepare(list_.size() - 1, std::vector<float>(count, gradient));
    }
  }

  auto pass() const {
    return [this](Ready ready) {
      for (std::size_t i = list_.size(); i-- > 0;)
        compute(i, ready);
    };
  }

  /// Blocking.
  bool weights_are(float value) const {
    block();
    for (const dtrain::Parameter& parameter : list_) {
      const std::size_t count = parameter.value.shape.element_count();
      if (on_host<float>(parameter.value.data, count) != std::vector<float>(count, value)) return false;
    }
    return true;
  }
};

/// Rank 0 calls `first_step` of a new optimizer to its end, then rank 1 does, and both call what it has returned.
template <class P, class FirstStep>
void expect_alone(const std::vector<std::size_t>& sizes, const ShardedOptions& stage, FirstStep first_step) {
  const EmulatedDevices emulated(2);
  std::barrier together(2);
  std::atomic<bool> has_ended{false};
  run_well<P>(2, [&](const dtrain::ProcessGroup<P>& group) {
    Model model(sizes, static_cast<float>(2 * group.rank()));
    DistributedDataParallel ddp{model, group, options};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}, stage};
    together.arrive_and_wait();
    const std::size_t bytes = emulation::allocated_device_bytes();
    together.arrive_and_wait();
    if (group.rank() == 1) CHECK(holds_soon([&] { return has_ended.load(); }));
    const auto check = first_step(model, ddp, optimizer);
    if (group.rank() == 0) CHECK(emulation::allocated_device_bytes() == bytes);
    has_ended = true;
    check();
    group.barrier();
  });
}

template <class P>
void expect_step_alone(const ShardedOptions& stage, const StepOptions& step) {
  for (const auto* sizes : {&of_all_sizes, &of_one_size}) {
    expect_alone<P>(*sizes, stage, [&](const Model& model, auto& ddp, auto& optimizer) {
      ddp.backward(model.pass(), optimizer, step);
      return [&model, &step] {
        model.block();
        if (step.clip_norm == 0) CHECK(model.weights_are(-1));
      };
    });
  }
}

template <class P>
void expect_all_stages_alone(const StepOptions& step) {
  expect_step_alone<P>({}, step);
  expect_step_alone<P>({.early_update = true}, step);
  expect_step_alone<P>({.stage = 2}, step);
  expect_step_alone<P>({.stage = 2, .early_update = true}, step);
}

TEST_CASE("a rank enqueues the whole first sharded step without another rank, and allocates nothing") {
  SUBCASE("launched in the calling thread") {
    expect_all_stages_alone<Policy<true>>({});
  }
  SUBCASE("launched in threads of NCCL's") {
    expect_all_stages_alone<Policy<false>>({});
  }
  SUBCASE("clipped") {
    expect_all_stages_alone<Policy<true>>({.clip_norm = 1.0});
  }
  SUBCASE("measured") {
    expect_all_stages_alone<Policy<true>>({.measure_norm = true});
  }
}

TEST_CASE("a rank captures its first sharded step without another rank, and each replay updates") {
  const auto expect_capture = [](const ShardedOptions& stage, const StepOptions& with) {
    for (const auto* sizes : {&of_all_sizes, &of_one_size}) {
      expect_alone<Policy<false>>(*sizes, stage, [&](const Model& model, auto& ddp, auto& optimizer) {
        const auto step = [&] { ddp.backward(model.pass(), optimizer, with); };
        const std::shared_ptr<const support::Graph> graph(
            new support::Graph(support::captured(model.stream(), step, cudaStreamCaptureModeThreadLocal)));
        return [graph, &model, &optimizer, &with] {
          for (int i = 0; i < 2; ++i)
            graph->launch(model.stream());
          model.block();
          CHECK(optimizer.steps() == 2);
          if (with.clip_norm == 0) CHECK(model.weights_are(-2));
        };
      });
    }
  };
  for (const StepOptions& with : {StepOptions{}, StepOptions{.clip_norm = 1.0}}) {
    expect_capture({}, with);
    expect_capture({.stage = 2}, with);
  }
}

TEST_CASE("gradients in the wrapper's memory keep their values when an optimizer connects the ranks") {
  const EmulatedDevices emulated(2);
  run_well<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    const auto own = static_cast<float>(1 + group.rank());
    Binding<Model> model(of_all_sizes, own);
    DistributedDataParallel ddp{model, group, options};
    for (std::size_t i = 0; i < of_all_sizes.size(); ++i)
      support::write(model.parameters()[i].gradient.data, std::vector<float>(of_all_sizes[i], own));
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}};
    for (std::size_t i = 0; i < of_all_sizes.size(); ++i)
      CHECK(model.holds(i, own));
    ddp.backward(model.pass(), optimizer);
    CHECK(model.weights_are(-1.5F));
    group.barrier();
  });
}

TEST_CASE("one rank alone connects nothing: its wrapper and optimizer enqueue no reduction") {
  const EmulatedDevices emulated(1);
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model(of_all_sizes, 1);
    DistributedDataParallel ddp{model, group, options};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{}};
    const emulation::Traffic traffic = emulation::traffic(0);
    CHECK(traffic.all_reduced + traffic.reduce_scattered + traffic.gathered == 0);
  });
}

}  // namespace cuda_sharded_connection_test

#endif  // DTRAIN_EMULATED_CUDA
