#include "unit/cuda/prelude.hpp"

#if DTRAIN_EMULATED_CUDA

#include "dtrain/backend/nccl/channel.hpp"
#include "support/scoped_variable.hpp"

namespace {

/// Whether an operation of one channel completes on a rank while that of another one, enqueued before, has not begun
/// there; both have on the other rank.
bool overtakes(bool library_orders) {
  const auto job = std::make_shared<FakeJob>(2);
  std::atomic<bool> completed{false};
  const support::ScopedVariable order("NCCL_LAUNCH_ORDER_IMPLICIT", library_orders ? "1" : "0");
  support::run_thread_ranks(2, [&](support::RankThread& self) {
    const auto opened = [&](const std::string& name) {
      if (!library_orders) {
        support::check(cudaSetDevice(self.rank()), "cudaSetDevice");
        emulation::fail("ncclGetVersion", 3, ncclSystemError, self.rank());  // of the channel that has operations
      }
      return NcclRank(job, self.rank(), 2, name);
    };
    NcclRank first = opened("first");
    NcclRank second = opened("second");
    self.doing("connecting");
    first.connect();
    second.connect();
    const auto one = first.put<float>({1});
    const auto other = second.put<float>({1});
    support::Gate gate;
    if (self.rank() == 0) support::enqueue_on_host(first.stream.ref(), [&] { gate.pass(); });
    self.doing("reducing");
    first.communicator.enqueue(AllReduce{one.view(), one.view(), dtrain::ReduceOp::sum}, first.stream.ref());
    second.communicator.enqueue(AllReduce{other.view(), other.view(), dtrain::ReduceOp::sum}, second.stream.ref());
    if (self.rank() == 0) {
      dtrain::stream::cuda::Event event;
      second.stream.ref().record(event);
      completed = event.block_until_complete(Deadline::after(200ms)) == dtrain::stream::WaitResult::complete;
      gate.open();
    }
    CHECK(first.wait());
    CHECK(second.wait());
  });
  return completed;
}

}  // namespace

TEST_CASE("an operation waits for the one enqueued before it on another channel of its device") {
  REQUIRE(support::enough_devices(2));
  CHECK_FALSE(overtakes(false));  // before NCCL 2.26 by dtrain
  CHECK_FALSE(overtakes(true));   // by NCCL
}

TEST_CASE("two threads that launch on one device at once are told to take turns, or how NCCL bears them") {
  REQUIRE(support::enough_devices(2));
  const auto job = std::make_shared<FakeJob>(2);
  const support::ScopedVariable order("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
  support::run_thread_ranks(2, [&](support::RankThread& self) {
    NcclRank first(job, self.rank(), 2, "first");
    NcclRank second(job, self.rank(), 2, "second");
    first.connect();
    second.connect();
    if (self.rank() == 1) {
      CHECK(job->latch(1)->block_until_failed(Deadline::after(60s)));
      return;
    }
    const auto one = first.put<float>({1});
    const auto other = second.put<float>({1});
    emulation::hold_launches(true);
    std::thread earlier([&] {
      support::check(cudaSetDevice(0), "cudaSetDevice");
      const auto error = support::error_of([&] {
        first.communicator.enqueue(AllReduce{one.view(), one.view(), dtrain::ReduceOp::sum}, first.stream.ref());
      });
      REQUIRE(error.code());
      CAPTURE(std::string(error.what()));
      CHECK(contains(error.what(), "ncclInvalidUsage"));  // from the call, or from the watchdog, which may be faster
      CHECK(contains(error.what(), "racing to launch NCCL on same device"));
      CHECK(contains(error.what(), "one thread at a time may launch NCCL operations on a device"));
      CHECK(contains(error.what(), "NCCL_LAUNCH_RACE_FATAL=0"));
    });
    while (emulation::launches_held() < 1)
      std::this_thread::yield();
    std::thread later([&] {
      support::check(cudaSetDevice(0), "cudaSetDevice");
      // The job's failure may come first.
      static_cast<void>(support::error_of([&] {
        second.communicator.enqueue(AllReduce{other.view(), other.view(), dtrain::ReduceOp::sum}, second.stream.ref());
      }));
    });
    while (emulation::launches_held() < 2)
      std::this_thread::yield();
    emulation::hold_launches(false);
    earlier.join();
    later.join();
  });
  emulation::reset();
}

TEST_CASE("an operation that another thread does not end enqueueing is waited for until the deadline") {
  REQUIRE(support::enough_devices(1));
  using dtrain::backend::nccl::LaunchOrder;
  LaunchOrder order;
  const dtrain::stream::cuda::Stream stream;
  std::optional<LaunchOrder::Turn> held(std::in_place, order, stream.ref(), Deadline::after(60s));
  std::thread([&] {
    CHECK_THROWS_WITH_AS(LaunchOrder::Turn(order, stream.ref(), Deadline::after(50ms)),
                         doctest::Contains("still being enqueued at the timeout"), dtrain::Error);
  }).join();
  std::thread next([&] { LaunchOrder::Turn(order, stream.ref(), Deadline::after(60s)).end(stream.ref()); });
  held->end(stream.ref());
  held.reset();
  next.join();
}
#endif
