#include "dtrain/async/events.hpp"
#include "unit/async/prelude.hpp"

namespace {

TEST_CASE("an event wakes all its waiters in order, and later ones pass at once until it is reset") {
  EventLoop loop;
  async::ManualResetEvent event(loop);
  std::vector<int> order;
  const auto waiter = [&](int name) -> Task<void> {
    const WakeReason ready = co_await event.wait(soon());
    CHECK(ready == WakeReason::ready);
    order.push_back(name);
  };
  std::vector<async::TaskHandle> tasks;
  for (int i = 0; i < 3; ++i)
    tasks.push_back(loop.spawn(waiter(i)));
  run(loop, [&]() -> Task<void> {
    co_await loop.sleep_for(1ms);
    CHECK(event.has_waiters());
    event.set();
    co_await waiter(9);
    co_await loop.sleep_for(1ms);
    event.reset();
    const WakeReason ready = co_await event.wait(Deadline::after(2ms));
    CHECK(ready == WakeReason::timed_out);
    CHECK_FALSE(event.has_waiters());
  });
  CHECK(order == std::vector<int>{9, 0, 1, 2});
}

TEST_CASE("a waiter that is destroyed, also after it was woken, does not run") {
  EventLoop loop;
  async::ManualResetEvent event(loop);
  int passed = 0;
  const auto waiter = [&]() -> Task<void> {
    co_await event.wait(soon());
    ++passed;
  };
  async::TaskHandle before = loop.spawn(waiter());
  async::TaskHandle after = loop.spawn(waiter());
  async::TaskHandle kept = loop.spawn(waiter());
  run(loop, [&]() -> Task<void> {
    co_await loop.sleep_for(1ms);
    before.cancel();
    event.set();
    after.cancel();
    co_await loop.sleep_for(1ms);
  });
  CHECK(passed == 1);
  CHECK(kept.done());
}

TEST_CASE("each set of an auto-reset event lets one coroutine pass, and unused sets count once") {
  EventLoop loop;
  async::AutoResetEvent event(loop);
  int passed = 0;
  const auto waiter = [&](Deadline deadline) -> Task<void> {
    const WakeReason ready = co_await event.wait(deadline);
    passed += ready == WakeReason::ready ? 1 : 0;
  };
  event.set();
  event.set();
  std::vector<async::TaskHandle> tasks;
  for (int i = 0; i < 3; ++i)
    tasks.push_back(loop.spawn(waiter(soon())));
  tasks.push_back(loop.spawn(waiter(Deadline::after(30ms))));  // in vain: it is the last
  run(loop, [&]() -> Task<void> {
    co_await loop.sleep_for(1ms);
    CHECK(passed == 1);
    event.set();
    event.set();
    co_await loop.sleep_for(1ms);
    CHECK(passed == 3);
    co_await loop.sleep_for(50ms);
    CHECK(passed == 3);
    CHECK_FALSE(event.is_set());
  });
}

TEST_CASE("a set given to a waiter that is destroyed before it runs goes to the next one") {
  EventLoop loop;
  async::AutoResetEvent event(loop);
  int passed = 0;
  const auto waiter = [&]() -> Task<void> {
    const WakeReason ready = co_await event.wait(soon());
    passed += ready == WakeReason::ready ? 1 : 0;
  };
  async::TaskHandle first = loop.spawn(waiter());
  async::TaskHandle second = loop.spawn(waiter());
  run(loop, [&]() -> Task<void> {
    co_await loop.sleep_for(1ms);
    event.set();
    first.cancel();
    co_await loop.sleep_for(1ms);
    CHECK(passed == 1);
    CHECK(second.done());
  });
}

}  // namespace
