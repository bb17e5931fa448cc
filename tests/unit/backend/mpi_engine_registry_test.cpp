#include "dtrain/backend/mpi/endpoint.hpp"
#include "dtrain/backend/mpi/engine.hpp"
#include "unit/backend/prelude.hpp"

using dtrain::backend::mpi::CallMonitor;
using dtrain::backend::mpi::EngineRegistry;
using dtrain::backend::mpi::HangDetector;

namespace {

const auto make = [] { return std::make_shared<int>(7); };

Deadline soon() {
  return Deadline::after(60s);
}

}  // namespace

TEST_CASE("all of a process share one engine while somebody owns it, and the next one is new") {
  EngineRegistry<int> registry;
  auto first = registry.shared_blocking(make, soon());
  CHECK(registry.shared_blocking(make, soon()) == first);
  *first = 8;
  first.reset();
  CHECK(*registry.shared_blocking(make, soon()) == 7);
}

TEST_CASE("an engine that cannot be made leaves the registry to the next") {
  EngineRegistry<int> registry;
  const auto fails = []() -> std::shared_ptr<int> { throw std::runtime_error("no MPI"); };
  CHECK_THROWS_WITH_AS(registry.shared_blocking(fails, soon()), "no MPI", std::runtime_error);
  CHECK(*registry.shared_blocking(make, soon()) == 7);
}

TEST_CASE("where MPI was disabled the next group gets an error that says so") {
  EngineRegistry<int> registry;
  registry.shared_blocking(make, soon());
  registry.disable();
  CHECK_THROWS_WITH_AS(registry.shared_blocking(make, soon()),
                       doctest::Contains("an earlier process group of this process ended in a failure"), dtrain::Error);
}

TEST_CASE("who waits for another thread's engine waits no longer than its deadline") {
  EngineRegistry<int> registry;
  support::Gate gate;
  std::thread other([&] {
    const auto slow = [&] {
      gate.pass();
      return std::make_shared<int>(7);
    };
    registry.shared_blocking(slow, soon());
  });
  REQUIRE(gate.is_reached_soon());
  CHECK_THROWS_WITH_AS(registry.shared_blocking(make, Deadline::after(20ms)),
                       doctest::Contains("another thread of this process is still initialising MPI"), dtrain::Error);
  gate.open();
  CHECK(*registry.shared_blocking(make, soon()) == 7);
  other.join();
}

TEST_CASE("one call that does not come back hangs; a thread that is outside, or monitor again and again, is busy") {
  CallMonitor monitor;
  HangDetector outside(monitor, 10ms);
  std::this_thread::sleep_for(15ms);
  CHECK_FALSE(outside.hangs());  // 15 ms of reducing, say
  HangDetector busy(monitor, 10ms);
  for (int i = 0; i < 5; ++i) {
    const CallMonitor::InCall in_call(monitor);
    std::this_thread::sleep_for(15ms);
    CHECK_FALSE(busy.hangs());  // each is another one
  }
  const CallMonitor::InCall in_call(monitor);
  HangDetector hanging(monitor, 10ms);
  CHECK_FALSE(hanging.hangs());
  std::this_thread::sleep_for(15ms);
  CHECK(hanging.hangs());
}
