#include "unit/cuda/ddp/device_model.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::DdpOptions;
using ThreadedNccl = dtrain::backend::NcclWith<dtrain::backend::NcclOptions{.launches_in_caller = false}>;
using ThreadedPolicy = dtrain::Policy<dtrain::launch::PerProcess, ThreadedNccl>;

/// Two parameters of f32, one of f64, and a buffer of i64, on the rank's device; one stream computes.
class Model : public DeviceModel {
 public:
  explicit Model(int rank) : counter_(on_device(std::vector<std::int64_t>{rank + 5})) {
    add<float>("w", 300, static_cast<float>(rank + 1));
    add<double>("scale", 7, rank + 1.0);
    add<float>("b", 40, static_cast<float>(rank + 1));
  }

  std::vector<TensorView> buffers() const { return {{counter_.data(), {1}, DType::i64, device_}}; }

  /// Gradients whose every element is `value`.
  void backward(double value, Ready ready) {
    prepare(0, std::vector<float>(300, static_cast<float>(value)));
    prepare(1, std::vector<double>(7, value));
    prepare(2, std::vector<float>(40, static_cast<float>(value)));
    for (const std::size_t i : {1u, 2u, 0u})
      compute(i, ready);
  }

  /// Blocking: whether every gradient is `value` for what comes next on the stream.
  bool holds(double value) const {
    return DeviceModel::holds(0, static_cast<float>(value)) && DeviceModel::holds(1, value) &&
           DeviceModel::holds(2, static_cast<float>(value));
  }
  bool starts_with(double value) const {
    return on_host<float>(list_[0].value.data, 300) == std::vector<float>(300, static_cast<float>(value)) &&
           on_host<double>(list_[1].value.data, 7) == std::vector<double>(7, value);
  }
  std::int64_t counter() const {
    block();
    return on_host<std::int64_t>(counter_.data(), 1)[0];
  }

 private:
  DeviceBuffer counter_;
};

using BindingModel = Binding<Model>;

/// Two parameters of i32, which a step copies as they are.
class PairOfWholeNumbers : public DeviceModel {
 public:
  PairOfWholeNumbers() {
    add<std::int32_t>("rows", 3, 0);
    add<std::int32_t>("columns", 3, 0);
  }

  /// Gradients whose every element is `value`.
  void backward(std::int32_t value, Ready ready) {
    for (const std::size_t i : {1u, 0u}) {
      prepare(i, std::vector<std::int32_t>(3, value));
      compute(i, ready);
    }
  }
};

/// Whole numbers, whose sums over 1, 2 or 4 ranks and halves are exact on every backend.
template <class Policy, class M>
void expect_training(int ranks) {
  run_well<Policy>(ranks, [&](const dtrain::ProcessGroup<Policy>& group) {
    M model(group.rank());
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 256}};
    CHECK((model.starts_with(1) && model.counter() == 5));  // rank 0's values
    for (int step = 0; step < 3; ++step) {
      ddp.backward([&](Ready ready) { model.backward(8 * step + 2 * group.rank(), ready); });
      CHECK(model.holds(8 * step + group.world_size() - 1));
    }
    CHECK(ddp.plan().bucket_of == std::vector<std::size_t>{2, 0, 1});  // as the gradients were ready
    const std::string summary = ddp.summary();
    CHECK(summary.find("a step of 3: forward ") == 0);
    group.barrier();
  });
}

}  // namespace

TEST_CASE("a model on a GPU is trained over NCCL, bound or not, by 1, 2 and 4 ranks") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    if (!support::enough_devices(ranks)) {
      dtrain_test::skip("there is no device for each rank");
      continue;
    }
    expect_training<NcclPolicy, Model>(ranks);
    expect_training<NcclPolicy, BindingModel>(ranks);
  }
}

#if DTRAIN_EMULATED_CUDA
TEST_CASE("two wrappers of a group train beside it, and each rank initialises NCCL once") {
  emulation::reset();
  REQUIRE(support::enough_devices(2));
  run_well<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model one(group.rank());
    BindingModel other(group.rank());
    DistributedDataParallel first{one, group};
    DistributedDataParallel second{other, group};
    for (int step = 0; step < 3; ++step) {
      first.backward([&](Ready ready) { one.backward(8 * step + 2 * group.rank(), ready); });
      second.backward([&](Ready ready) { other.backward(step + 2 * group.rank(), ready); });
      group.barrier();
      CHECK((one.holds(8 * step + 1) && other.holds(step + 1)));
    }
  });
  CHECK(emulation::initialisations() == 2);
}
#endif

TEST_CASE("a model on a GPU is trained with launches in threads of NCCL's") {
  if (!support::enough_devices(2)) return dtrain_test::skip("there are no two devices");
  expect_training<ThreadedPolicy, Model>(2);
#if DTRAIN_EMULATED_CUDA
  CHECK(emulation::concurrent_calls() == 0);
  emulation::reset();
#endif
}

TEST_CASE("values on a GPU are not compared, whatever DTRAIN_CHECK_VALUES says") {
  if (!support::enough_devices(2)) return dtrain_test::skip("there are no two devices");
  ::setenv("DTRAIN_CHECK_VALUES", "1", 1);
  expect_training<NcclPolicy, Model>(2);
  ::unsetenv("DTRAIN_CHECK_VALUES");
  run_well<NcclPolicy>(2, [](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model(group.rank());
    DistributedDataParallel ddp{model, group};
    CHECK_ERROR(ddp.compare_values(), dtrain::Errc::unsupported, "this model's are on a GPU");
    group.barrier();
  });
}

TEST_CASE("ranks that share a GPU train over the host's memory") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  ::setenv("DTRAIN_SHARE_DEVICES", "1", 1);
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    expect_training<StagedPolicy, Model>(ranks);
    expect_training<StagedPolicy, BindingModel>(ranks);
  }
  ::unsetenv("DTRAIN_SHARE_DEVICES");
}

#if DTRAIN_EMULATED_CUDA
TEST_CASE("ranks that share a GPU and its hardware queues train over the host's memory") {
  emulation::reset();
  REQUIRE(support::enough_devices(1));
  const char* const before = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const std::string queues = before == nullptr ? "" : before;
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  dtrain::backend::staged::prepare_environment();  // as each rank does, which here is a thread beside others
  ::setenv("DTRAIN_SHARE_DEVICES", "1", 1);
  emulation::set_hardware_queues(true);
  expect_training<StagedPolicy, Model>(4);
  emulation::reset();
  ::unsetenv("DTRAIN_SHARE_DEVICES");
  if (!queues.empty()) ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues.c_str(), 1);
}
#endif

#if DTRAIN_EMULATED_CUDA
TEST_CASE("training goes on where CUDA refuses a batch of copies, in whichever call") {
  for (const int nth : {1, 2, 3}) {
    CAPTURE(nth);
    emulation::reset();
    REQUIRE(support::enough_devices(2));
    emulation::fail("cudaMemcpyBatchAsync", nth, cudaErrorInvalidValue, 1);
    run_well<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
      PairOfWholeNumbers model;
      DistributedDataParallel ddp{model, group, {.reduce_op = dtrain::ReduceOp::sum}};
      for (const std::int32_t step : {1, 2, 3, 4}) {
        ddp.backward([&](Ready ready) { model.backward(step + group.rank(), ready); });
        CHECK(model.holds(0, 2 * step + 1));
        CHECK(model.holds(1, 2 * step + 1));
      }
    });
    CHECK_FALSE(emulation::is_failure_pending("cudaMemcpyBatchAsync"));
    CHECK(cudaPeekAtLastError() == cudaSuccess);
  }
  emulation::reset();
}
#endif

TEST_CASE("a parameter of the host in a model on a GPU is refused by its name") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  struct Mixed : Model {
    Mixed() : Model(0), host(8) {
      list_.push_back({"table", dtrain::tensor_view(host.data(), {4}), dtrain::tensor_view(host.data() + 4, {4})});
    }
    std::vector<float> host;
  };
  const std::vector<RankEnd> ends = run_groups<NcclPolicy>(1, [](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Mixed model;
    DistributedDataParallel ddp{model, group};
  });
  CHECK(ends[0].text == "parameter 3 'table' is on host, which backend Nccl does not reduce");
}

TEST_CASE("an average of integers over NCCL is refused when the model is wrapped; a sum is reduced") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  const auto average = [](const dtrain::ProcessGroup<NcclPolicy>& group) {
    WholeNumbers model;
    DistributedDataParallel ddp{model, group};
  };
  for (const RankEnd& end : run_groups<NcclPolicy>(2, average)) {
    CHECK_CONTAINS(end.text,
                   "parameter 0 'table' has a gradient of i32, whose average backend Nccl does not form; "
                   "DdpOptions::reduce_op = ReduceOp::sum");
  }
  run_well<NcclPolicy>(2, [](const dtrain::ProcessGroup<NcclPolicy>& group) {
    WholeNumbers model;
    DistributedDataParallel ddp{model, group, {.reduce_op = ReduceOp::sum}};
    model.prepare(0, std::vector<std::int32_t>{group.rank(), 5});
    ddp.backward([&](Ready ready) { model.compute(0, ready); });
    CHECK(model.gradient<std::int32_t>(0) == std::vector<std::int32_t>{1, 10});
  });
}
