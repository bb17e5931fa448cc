#include "dtrain/distributed_data_parallel.hpp"

#include "dtrain/core/config.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/backend/nccl.hpp"
#include "dtrain/backend/staged.hpp"
#include "dtrain/launch/per_process.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/cuda/stream.hpp"
#include "support/nccl_rank.hpp"
#include "support/thread_group.hpp"

namespace {

using dtrain::DdpOptions;
using dtrain::DeviceKind;
using dtrain::DistributedDataParallel;
using dtrain::DType;
using dtrain::Ready;
using dtrain::stream::cuda::PinnedBuffer;
using dtrain::stream::cuda::Stream;
using support::check;
using support::DeviceBuffer;
using support::RankEnd;
using support::run_groups;

using NcclPolicy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Nccl>;
using BlockingNccl = dtrain::backend::NcclWith<dtrain::backend::NcclOptions{.blocking = true}>;
using BlockingPolicy = dtrain::Policy<dtrain::launch::PerProcess, BlockingNccl>;
using StagedPolicy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Staged<dtrain::backend::SharedMemory>>;

/// Two parameters of f32, one of f64, and a buffer of i64, on the rank's device; one stream computes.
class Model {
 public:
  static constexpr DeviceKind device_kind = DeviceKind::cuda;

  explicit Model(int rank) : device_{DeviceKind::cuda, dtrain::stream::cuda::current_device()} {
    add<float>("w", 300, static_cast<float>(rank + 1));
    add<double>("scale", 7, rank + 1.0);
    add<float>("b", 40, static_cast<float>(rank + 1));
    counter_ = support::on_device(std::vector<std::int64_t>{rank + 5});
  }

  const std::vector<dtrain::Parameter>& parameters() const { return list_; }
  std::vector<dtrain::TensorView> buffers() const { return {{counter_.data(), {1}, DType::i64, device_}}; }

  /// Gradients whose every element is `value`.
  void backward(double value, Ready ready) {
    fill<float>(sources_[0], 300, value);
    fill<double>(sources_[1], 7, value);
    fill<float>(sources_[2], 40, value);
    for (const std::size_t i : {1u, 2u, 0u}) {
      check(cudaMemcpyAsync(list_[i].gradient.data, sources_[i].data(), list_[i].gradient.bytes(),
                            cudaMemcpyHostToDevice, stream_.ref().native()),
            "cudaMemcpyAsync");
      ready(i, stream_.ref().handle());
    }
  }

  /// Blocking: whether every gradient is `value` for what comes next on the stream.
  bool holds(double value) const {
    block();
    return all<float>(list_[0].gradient, value) && all<double>(list_[1].gradient, value) &&
           all<float>(list_[2].gradient, value);
  }
  bool starts_with(double value) const {
    return all<float>(list_[0].value, value) && all<double>(list_[1].value, value);
  }
  std::int64_t counter() const {
    block();
    return support::on_host<std::int64_t>(counter_.data(), 1)[0];
  }

 protected:
  std::vector<dtrain::Parameter> list_;

 private:
  template <class T>
  void add(const char* name, std::size_t count, T value) {
    values_.push_back(support::on_device(std::vector<T>(count, value)));
    gradients_.push_back(support::on_device(std::vector<T>(count, T{0})));
    sources_.emplace_back(count * sizeof(T));
    const dtrain::Shape shape{static_cast<std::int64_t>(count)};
    const DType dtype = dtrain::dtype_of<T>::value;
    list_.push_back(
        {name, {values_.back().data(), shape, dtype, device_}, {gradients_.back().data(), shape, dtype, device_}});
  }

  template <class T>
  static void fill(PinnedBuffer& source, std::size_t count, double value) {
    std::fill_n(reinterpret_cast<T*>(source.data()), count, static_cast<T>(value));
  }

  template <class T>
  static bool all(const dtrain::TensorView& view, double value) {
    const std::size_t count = view.shape.element_count();
    return support::on_host<T>(view.data, count) == std::vector<T>(count, static_cast<T>(value));
  }

  void block() const {
    dtrain::stream::cuda::Event event;
    stream_.ref().record(event);
    CHECK(event.block_until_complete(dtrain::Deadline::after(std::chrono::seconds(20))) ==
          dtrain::stream::WaitResult::complete);
  }

  dtrain::Device device_;
  std::vector<DeviceBuffer> values_;
  std::vector<DeviceBuffer> gradients_;
  std::vector<PinnedBuffer> sources_;
  DeviceBuffer counter_;
  Stream stream_;
};

struct BindingModel : Model {
  using Model::Model;
  void bind_gradient(std::size_t i, const dtrain::TensorView& view) { list_[i].gradient = view; }
};

/// One parameter of i32.
struct Counts {
  static constexpr DeviceKind device_kind = DeviceKind::cuda;
  explicit Counts(int rank)
      : value(support::on_device(std::vector<std::int32_t>{1, 2})),
        gradient(support::on_device(std::vector<std::int32_t>{rank, 5})) {}
  std::vector<dtrain::Parameter> parameters() const {
    const dtrain::Device device{DeviceKind::cuda, dtrain::stream::cuda::current_device()};
    return {{"table", {value.data(), {2}, DType::i32, device}, {gradient.data(), {2}, DType::i32, device}}};
  }
  DeviceBuffer value;
  DeviceBuffer gradient;
  Stream stream;
};

/// Two parameters of i32, which a step copies as they are.
class PairOfCounts {
 public:
  static constexpr DeviceKind device_kind = DeviceKind::cuda;
  PairOfCounts() {
    for (int i = 0; i < 2; ++i) {
      values_.push_back(support::on_device(std::vector<std::int32_t>(3)));
      gradients_.push_back(support::on_device(std::vector<std::int32_t>(3)));
    }
  }
  std::vector<dtrain::Parameter> parameters() const {
    const dtrain::Device device{DeviceKind::cuda, dtrain::stream::cuda::current_device()};
    return {{"rows", {values_[0].data(), {3}, DType::i32, device}, {gradients_[0].data(), {3}, DType::i32, device}},
            {"columns", {values_[1].data(), {3}, DType::i32, device}, {gradients_[1].data(), {3}, DType::i32, device}}};
  }

  /// Blocking. Gradients whose every element is `value`.
  void backward(std::int32_t value, Ready ready) {
    for (const std::size_t i : {1u, 0u}) {
      support::write(gradients_[i].data(), std::vector<std::int32_t>(3, value));
      ready(i, stream_.ref().handle());
    }
  }

  /// Blocking: whether every gradient is `value` for what comes next on the stream.
  bool holds(std::int32_t value) const {
    dtrain::stream::cuda::Event reduced;
    stream_.ref().record(reduced);
    const bool complete = reduced.block_until_complete(dtrain::Deadline::after(std::chrono::seconds(20))) ==
                          dtrain::stream::WaitResult::complete;
    const std::vector<std::int32_t> wanted(3, value);
    return complete && support::on_host<std::int32_t>(gradients_[0].data(), 3) == wanted &&
           support::on_host<std::int32_t>(gradients_[1].data(), 3) == wanted;
  }

 private:
  std::vector<DeviceBuffer> values_;
  std::vector<DeviceBuffer> gradients_;
  Stream stream_;
};

/// Whole numbers, whose sums over 1, 2 or 4 ranks and halves are exact on every backend.
template <class Policy, class M>
void expect_training(int ranks) {
  std::atomic<int> wrong{0};
  const std::vector<RankEnd> ends = run_groups<Policy>(ranks, [&](const dtrain::ProcessGroup<Policy>& group) {
    M model(group.rank());
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 256}};
    wrong += model.starts_with(1) && model.counter() == 5 ? 0 : 1;  // rank 0's values
    for (int step = 0; step < 3; ++step) {
      ddp.backward([&](Ready ready) { model.backward(8 * step + 2 * group.rank(), ready); });
      wrong += model.holds(8 * step + group.world_size() - 1) ? 0 : 1;
    }
    wrong += ddp.plan().bucket_of == std::vector<std::size_t>{2, 0, 1} ? 0 : 1;  // as the gradients were ready
    const std::string summary = ddp.summary();
    wrong += summary.find("a step of 3: forward ") == 0 ? 0 : 1;
    group.barrier();
  });
  CHECK(wrong == 0);
  for (const RankEnd& end : ends)
    CHECK(end.text == "");
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
  std::atomic<int> wrong{0};
  const std::vector<RankEnd> ends = run_groups<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model one(group.rank());
    BindingModel other(group.rank());
    DistributedDataParallel first{one, group};
    DistributedDataParallel second{other, group};
    for (int step = 0; step < 3; ++step) {
      first.backward([&](Ready ready) { one.backward(8 * step + 2 * group.rank(), ready); });
      second.backward([&](Ready ready) { other.backward(step + 2 * group.rank(), ready); });
      group.barrier();
      wrong += one.holds(8 * step + 1) && other.holds(step + 1) ? 0 : 1;
    }
  });
  CHECK(wrong == 0);
  for (const RankEnd& end : ends)
    CHECK(end.text == "");
  CHECK(emulation::initialisations() == 2);
}
#endif

TEST_CASE("a model on a GPU is trained with NCCL's blocking communicators") {
  if (!support::enough_devices(2)) return dtrain_test::skip("there are no two devices");
  expect_training<BlockingPolicy, Model>(2);
#if DTRAIN_EMULATED_CUDA
  CHECK(emulation::concurrent_calls() == 0);
  emulation::reset();
#endif
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
    std::atomic<int> wrong{0};
    const std::vector<RankEnd> ends = run_groups<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
      PairOfCounts model;
      DistributedDataParallel ddp{model, group, {.reduce_op = dtrain::ReduceOp::sum}};
      for (const std::int32_t step : {1, 2, 3, 4}) {
        ddp.backward([&](Ready ready) { model.backward(step + group.rank(), ready); });
        wrong += model.holds(2 * step + 1) ? 0 : 1;
      }
    });
    CHECK(wrong == 0);
    for (const RankEnd& end : ends)
      CHECK(end.text == "");
    CHECK_FALSE(emulation::is_failure_pending("cudaMemcpyBatchAsync"));
    CHECK(cudaPeekAtLastError() == cudaSuccess);
  }
  emulation::reset();
}
#endif

TEST_CASE("a parameter of the host in a model on a GPU is refused by its name") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  struct Mixed : Model {
    Mixed() : Model(0), host(4) {
      list_.push_back({"table", dtrain::tensor_view(host.data(), {4}), dtrain::tensor_view(host.data(), {4})});
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
    Counts model(group.rank());
    DistributedDataParallel ddp{model, group};
  };
  for (const RankEnd& end : run_groups<NcclPolicy>(2, average))
    CHECK(end.text.find("parameter 0 'table' has a gradient of i32, whose average backend Nccl does not form; "
                        "DdpOptions::reduce_op = ReduceOp::sum") != std::string::npos);
  const auto sum = [](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Counts model(group.rank());
    DistributedDataParallel ddp{model, group, {.reduce_op = dtrain::ReduceOp::sum}};
    ddp.backward([&](Ready ready) { ready(0, model.stream.ref().handle()); });
    dtrain::stream::cuda::Event reduced;
    model.stream.ref().record(reduced);
    CHECK(reduced.block_until_complete(dtrain::Deadline::after(std::chrono::seconds(20))) ==
          dtrain::stream::WaitResult::complete);
    CHECK(support::on_host<std::int32_t>(model.gradient.data(), 2) == std::vector<std::int32_t>{1, 10});
  };
  for (const RankEnd& end : run_groups<NcclPolicy>(2, sum))
    CHECK(end.text == "");
}
