#include "dtrain/core/config.hpp"

#if DTRAIN_EMULATED_CUDA

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/backend/nccl/launch_order.hpp"
#include "support/gate.hpp"
#include "support/nccl_rank.hpp"

namespace {

using dtrain::Deadline;
using support::FakeJob;
using support::NcclRank;
using namespace std::chrono_literals;

/// Whether an operation of one channel completes while that of another one, enqueued before, has not begun.
bool overtakes(bool library_orders) {
  const auto job = std::make_shared<FakeJob>(1);
  const auto opened = [&](const std::string& name) {
    if (!library_orders) {
      emulation::fail("ncclGetVersion", 2, ncclSystemError);  // the first call compares it with the header
    }
    return NcclRank(job, 0, 1, name);
  };
  NcclRank first = opened("first");
  NcclRank second = opened("second");
  const support::DeviceBuffer memory[] = {support::on_device(std::vector<float>(4, 1.0F)),
                                          support::on_device(std::vector<float>(4, 1.0F))};
  support::Gate gate;
  support::enqueue_on_host(first.stream.ref(), [&] { gate.pass(); });
  for (NcclRank* rank : {&first, &second}) {
    const auto view = rank->view(memory[rank == &second ? 1 : 0], 4, dtrain::DType::f32);
    rank->communicator.all_reduce(view, view, dtrain::ReduceOp::sum, rank->stream.ref());
  }
  dtrain::stream::cuda::Event event;
  second.stream.ref().record(event);
  const auto patience = library_orders ? 20s : 200ms;
  const bool completed = event.block_until_complete(Deadline::after(patience)) == dtrain::stream::WaitResult::complete;
  gate.open();
  CHECK(first.wait());
  CHECK(second.wait());
  return completed;
}

}  // namespace

TEST_CASE("before NCCL 2.26 an operation waits for the one enqueued before it on another channel of its device") {
  REQUIRE(support::enough_devices(1));
  CHECK_FALSE(overtakes(false));
  CHECK(overtakes(true));  // NCCL itself orders them
}

TEST_CASE("an operation that another thread does not end enqueueing is waited for until the deadline") {
  REQUIRE(support::enough_devices(1));
  using dtrain::backend::nccl::LaunchOrder;
  LaunchOrder order;
  const dtrain::stream::cuda::Stream stream;
  std::optional<LaunchOrder::Turn> held(std::in_place, order, stream.ref(), Deadline::after(20s));
  std::thread([&] {
    CHECK_THROWS_WITH_AS(LaunchOrder::Turn(order, stream.ref(), Deadline::after(50ms)),
                         doctest::Contains("still being enqueued at the timeout"), dtrain::Error);
  }).join();
  std::thread next([&] { LaunchOrder::Turn(order, stream.ref(), Deadline::after(20s)).end(stream.ref()); });
  held->end(stream.ref());
  held.reset();
  next.join();
}
#endif
