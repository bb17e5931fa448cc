#include "dtrain/async/when_all.hpp"
#include "unit/async/prelude.hpp"

namespace {

Task<std::unique_ptr<int>> later(EventLoop& loop, int value, std::chrono::milliseconds time,
                                 std::shared_ptr<int> alive) {
  co_await loop.sleep_for(time);
  if (value < 0) throw std::runtime_error("negative " + std::to_string(value) + " " + std::to_string(*alive));
  co_return std::make_unique<int>(value);
}

TEST_CASE("with_deadline gives the value of a task that ends in time and destroys one that does not") {
  EventLoop loop;
  const auto alive = std::make_shared<int>(0);
  const auto body = [&]() -> Task<void> {
    auto quick = later(loop, 3, 1ms, alive);
    const auto value = co_await async::with_deadline(loop, std::move(quick), soon());
    REQUIRE(value.has_value());
    CHECK(**value == 3);
    auto slow = later(loop, 4, 1h, alive);
    const auto nothing = co_await async::with_deadline(loop, std::move(slow), Deadline::after(2ms));
    CHECK_FALSE(nothing.has_value());
    CHECK(alive.use_count() == 1);
    auto failing = later(loop, -1, 1ms, alive);
    co_await async::with_deadline(loop, std::move(failing), soon());
  };
  CHECK_THROWS_WITH(loop.run_until(body(), soon()), "negative -1 0");
  CHECK(alive.use_count() == 1);
}

TEST_CASE("with_deadline of a void task says whether it ended, also for one that never suspends") {
  EventLoop loop;
  const auto at_once = []() -> Task<void> { co_return; };
  const auto never = [&]() -> Task<void> { co_await loop.sleep_for(1h); };
  run(loop, [&]() -> Task<void> {
    const bool ended = co_await async::with_deadline(loop, at_once(), Deadline::after(-1s));
    CHECK(ended);
    const bool in_vain = co_await async::with_deadline(loop, never(), Deadline::after(2ms));
    CHECK_FALSE(in_vain);
  });
  CHECK(loop.pending_timers() == 0);
}

TEST_CASE("when_all keeps the order of its tasks, whichever ends first") {
  EventLoop loop;
  const auto alive = std::make_shared<int>(0);
  run(loop, [&]() -> Task<void> {
    std::vector<Task<std::unique_ptr<int>>> tasks;
    for (int i = 0; i < 10; ++i)
      tasks.push_back(later(loop, i, std::chrono::milliseconds(10 - i), alive));
    const auto values = co_await async::when_all(loop, std::move(tasks), soon());
    REQUIRE(values.size() == 10);
    for (int i = 0; i < 10; ++i)
      CHECK(*values[static_cast<std::size_t>(i)] == i);
    std::vector<Task<void>> none;
    co_await async::when_all(loop, std::move(none), soon());
  });
  CHECK(alive.use_count() == 1);
}

TEST_CASE("the first exception in when_all destroys the other tasks before it is thrown") {
  EventLoop loop;
  const auto alive = std::make_shared<int>(0);
  const auto body = [&]() -> Task<void> {
    std::vector<Task<std::unique_ptr<int>>> tasks;
    tasks.push_back(later(loop, 1, 1h, alive));
    tasks.push_back(later(loop, -2, 2ms, alive));
    tasks.push_back(later(loop, 3, 1ms, alive));
    try {
      co_await async::when_all(loop, std::move(tasks), soon());
    } catch (const std::runtime_error& error) {
      CHECK(std::string(error.what()) == "negative -2 0");
      CHECK(alive.use_count() == 1);
      throw;
    }
  };
  CHECK_THROWS_AS(loop.run_until(body(), soon()), std::runtime_error);
}

TEST_CASE("when_all at its deadline says how many it waited for and destroys them") {
  EventLoop loop;
  const auto alive = std::make_shared<int>(0);
  const auto body = [&]() -> Task<void> {
    std::vector<Task<std::unique_ptr<int>>> tasks;
    tasks.push_back(later(loop, 1, 1h, alive));
    tasks.push_back(later(loop, 3, 1ms, alive));
    co_await async::when_all(loop, std::move(tasks), Deadline::after(30ms));
  };
  CHECK_THROWS_WITH_AS(loop.run_until(body(), soon()), "waiting for 1 of 2 tasks: the deadline passed", Error);
  CHECK(alive.use_count() == 1);
}

}  // namespace
