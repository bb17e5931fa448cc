#include "dtrain/core/config.hpp"

#if DTRAIN_EMULATED_CUDA

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/backend/nccl.hpp"
#include "dtrain/distributed_data_parallel.hpp"
#include "dtrain/launch/per_process.hpp"
#include "dtrain/stream/cuda/stream.hpp"
#include "support/cuda_training_rank.hpp"
#include "support/emulated_devices.hpp"
#include "support/expect_error.hpp"
#include "support/gate.hpp"
#include "support/thread_group.hpp"

namespace {

using dtrain::Deadline;
using dtrain::DeviceKind;
using dtrain::DistributedDataParallel;
using dtrain::DType;
using dtrain::Ready;
using support::CudaTrainingRank;
using support::DeviceBuffer;
using support::EmulatedDevices;
using support::FakeJob;
using support::NcclRank;
using support::RankEnd;
using support::RankThread;
using support::run_groups;
using support::run_thread_ranks;
using namespace std::chrono_literals;

template <bool blocking>
using Policy = dtrain::Policy<dtrain::launch::PerProcess,
                              dtrain::backend::NcclWith<dtrain::backend::NcclOptions{.blocking = blocking}>>;

/// A small and a large parameter, for which NCCL takes different algorithms.
struct Model {
  static constexpr DeviceKind device_kind = DeviceKind::cuda;
  static constexpr std::size_t small = 10;
  static constexpr std::size_t large = 100'000;

  explicit Model(float gradient)
      : values{support::on_device(std::vector<float>(small)), support::on_device(std::vector<float>(large))},
        gradients{support::on_device(std::vector<float>(small, gradient)),
                  support::on_device(std::vector<float>(large, gradient))} {}

  std::vector<dtrain::Parameter> parameters() const {
    const dtrain::Device device{DeviceKind::cuda, dtrain::stream::cuda::current_device()};
    std::vector<dtrain::Parameter> list;
    for (std::size_t i = 0; i < 2; ++i) {
      const dtrain::Shape shape{static_cast<std::int64_t>(i == 0 ? small : large)};
      list.push_back({i == 0 ? "small" : "large",
                      {values[i].data(), shape, DType::f32, device},
                      {gradients[i].data(), shape, DType::f32, device}});
    }
    return list;
  }

  DeviceBuffer values[2];
  DeviceBuffer gradients[2];
  dtrain::stream::cuda::Stream stream;
};

template <bool blocking>
void expect_enqueued_alone() {
  const EmulatedDevices emulated(2);
  std::atomic<bool> has_launched{false};
  std::atomic<int> wrong{0};
  const auto body = [&](const dtrain::ProcessGroup<Policy<blocking>>& group) {
    Model model(static_cast<float>(2 * group.rank()));
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 100, .first_bucket_bytes = 100}};
    if (group.rank() == 1) wrong += support::holds_soon([&] { return has_launched.load(); }) ? 0 : 1;
    ddp.backward([&](Ready ready) {
      for (const std::size_t i : {1U, 0U})
        ready(i, model.stream.ref().handle());
      has_launched = true;
    });
    dtrain::stream::cuda::Event reduced;
    model.stream.ref().record(reduced);
    wrong += reduced.block_until_complete(Deadline::after(20s)) == dtrain::stream::WaitResult::complete ? 0 : 1;
    wrong += support::on_host<float>(model.gradients[1].data(), Model::large) == std::vector<float>(Model::large, 1);
  };
  for (const RankEnd& end : run_groups<Policy<blocking>>(2, body))
    CHECK(end.text == "");
  CHECK(wrong == 2);
}

}  // namespace

TEST_CASE("the first step's ready() enqueues a bucket of any size without another rank, whose connections exist") {
  SUBCASE("non-blocking communicators") {
    expect_enqueued_alone<false>();
  }
  SUBCASE("blocking communicators") {
    expect_enqueued_alone<true>();
  }
}

TEST_CASE("a rank that does not come when the others connect is named at the timeout") {
  const EmulatedDevices emulated(2);
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& self) {
    NcclRank opened(job, self.rank(), 2, "ddp", 1s);
    if (self.rank() == 1) {
      CHECK(job->latch(1)->block_until_failed(Deadline::after(15s)));
      return;
    }
    const auto began = Deadline::Clock::now();
    const std::string why = support::sentence_of([&] { CudaTrainingRank(std::move(opened), {.timeout = 1s}); });
    CAPTURE(why);
    CHECK(support::contains(why, "all_reduce (average) of"));
    CHECK(support::contains(why, "it had not ended after 1.0 s; rank 1 of the channel is in none"));
    CHECK(Deadline::Clock::now() - began < 12s);
  });
}

#endif  // DTRAIN_EMULATED_CUDA
