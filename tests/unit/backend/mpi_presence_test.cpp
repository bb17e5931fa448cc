#include "dtrain/backend/mpi/presence.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

#include "dtrain/backend/mpi/calls.hpp"

using dtrain::Deadline;
using dtrain::backend::mpi::Calls;
using dtrain::backend::mpi::CallWatch;
using dtrain::backend::mpi::Presence;
using namespace std::chrono_literals;

namespace {

const auto make = [] { return std::make_shared<int>(7); };

Deadline soon() {
  return Deadline::after(10s);
}

}  // namespace

TEST_CASE("all of a process share one engine while somebody owns it, and the next one is new") {
  Presence<int> presence;
  auto first = presence.shared_blocking(make, soon());
  CHECK(presence.shared_blocking(make, soon()) == first);
  *first = 8;
  first.reset();
  CHECK(*presence.shared_blocking(make, soon()) == 7);
}

TEST_CASE("an engine that cannot be made leaves the place to the next") {
  Presence<int> presence;
  const auto fails = []() -> std::shared_ptr<int> { throw std::runtime_error("no MPI"); };
  CHECK_THROWS_WITH_AS(presence.shared_blocking(fails, soon()), "no MPI", std::runtime_error);
  CHECK(*presence.shared_blocking(make, soon()) == 7);
}

TEST_CASE("where MPI was given up the next group is told so") {
  Presence<int> presence;
  presence.shared_blocking(make, soon());
  presence.give_up();
  CHECK_THROWS_WITH_AS(presence.shared_blocking(make, soon()),
                       doctest::Contains("an earlier process group of this process ended in a failure"), dtrain::Error);
}

TEST_CASE("who waits for another thread's engine waits no longer than its deadline") {
  Presence<int> presence;
  std::atomic<bool> inside{false};
  std::atomic<bool> may_end{false};
  std::thread other([&] {
    const auto slow = [&] {
      inside.store(true);
      const Deadline end = soon();
      while (!may_end.load() && !end.passed())
        std::this_thread::sleep_for(1ms);
      return std::make_shared<int>(7);
    };
    presence.shared_blocking(slow, soon());
  });
  while (!inside.load())
    std::this_thread::sleep_for(1ms);
  CHECK_THROWS_WITH_AS(presence.shared_blocking(make, Deadline::after(20ms)), doctest::Contains("another thread"),
                       dtrain::Error);
  may_end.store(true);
  CHECK(*presence.shared_blocking(make, soon()) == 7);
  other.join();
}

TEST_CASE("one call that does not come back hangs; a thread that is outside, or calls again and again, is busy") {
  Calls calls;
  CallWatch outside(calls, 10ms);
  std::this_thread::sleep_for(15ms);
  CHECK_FALSE(outside.hangs());  // 15 ms of reducing, say
  CallWatch busy(calls, 10ms);
  for (int i = 0; i < 5; ++i) {
    const Calls::Inside inside(calls);
    std::this_thread::sleep_for(15ms);
    CHECK_FALSE(busy.hangs());  // each is another one
  }
  const Calls::Inside inside(calls);
  CallWatch hanging(calls, 10ms);
  CHECK_FALSE(hanging.hangs());
  std::this_thread::sleep_for(15ms);
  CHECK(hanging.hangs());
}
