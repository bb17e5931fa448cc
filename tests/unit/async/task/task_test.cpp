#include "dtrain/async/task.hpp"

#include "unit/async/prelude.hpp"

namespace {

/// Counts how many of it are alive.
struct Counted {
  explicit Counted(int& live) : count(&live) { ++*count; }
  Counted(const Counted& other) : count(other.count) { ++*count; }
  Counted(Counted&& other) noexcept : count(other.count) { ++*count; }
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --*count; }
  int* count;
};

Task<int> value(int result) {
  co_return result;
}

Task<std::unique_ptr<int>> move_only(int result) {
  co_return std::make_unique<int>(result);
}

Task<int> throwing(int& live) {
  const Counted local(live);
  throw std::runtime_error("from the child");
  co_return 0;
}

Task<Counted> counted_result(async::EventLoop& loop, int& live, Counted by_value) {
  const Counted local(live);
  co_await loop.sleep_for(1ms);
  co_return by_value;
}

TEST_CASE("a task runs nothing before it is awaited and everything after") {
  int steps = 0;
  const auto body = [&steps]() -> Task<int> {
    ++steps;
    co_return 7;
  };
  async::EventLoop loop;
  Task<int> task = body();
  CHECK(steps == 0);
  CHECK(loop.run_until(std::move(task), soon()) == 7);
  CHECK(steps == 1);
}

TEST_CASE("a task that is never awaited frees its parameters") {
  int live = 0;
  async::EventLoop loop;
  {
    const Task<Counted> task = counted_result(loop, live, Counted(live));
    CHECK(live == 1);
  }
  CHECK(live == 0);
}

TEST_CASE("move-only values, locals, parameters and results are each destroyed once") {
  int live = 0;
  async::EventLoop loop;
  run(loop, [&]() -> Task<void> {
    const std::unique_ptr<int> number = co_await move_only(5);
    CHECK(*number == 5);
    Task<Counted> child = counted_result(loop, live, Counted(live));
    const Counted result = co_await std::move(child);
    CHECK(live == 1);
  });
  CHECK(live == 0);
}

TEST_CASE("an exception passes through every task to who awaits, and the locals on its way are destroyed") {
  int live = 0;
  async::EventLoop loop;
  const auto middle = [&live]() -> Task<int> {
    const Counted local(live);
    const int result = co_await throwing(live);
    co_return result;
  };
  CHECK_THROWS_WITH_AS(loop.run_until(middle(), soon()), "from the child", std::runtime_error);
  CHECK(live == 0);
}

TEST_CASE("a task that was moved from or awaited twice says so") {
  async::EventLoop loop;
  const auto body = []() -> Task<void> {
    Task<int> task = value(1);
    const int first = co_await std::move(task);
    CHECK(first == 1);
    co_await std::move(task);  // NOLINT(bugprone-use-after-move): what is tested
  };
  CHECK_THROWS_AS(loop.run_until(body(), soon()), Error);
}

TEST_CASE("destroying a suspended task destroys its children's frames and takes their awaiters out of the loop") {
  int live = 0;
  async::EventLoop loop;
  const auto leaf = [&]() -> Task<void> {
    const Counted local(live);
    co_await loop.sleep_for(1h);
  };
  const auto middle = [&]() -> Task<void> {
    const Counted local(live);
    co_await leaf();
  };
  Task<void> task = middle();
  task.handle().resume();
  CHECK(live == 2);
  CHECK(loop.pending_timers() == 1);
  task.destroy();
  CHECK(live == 0);
  CHECK(loop.pending_timers() == 0);
}

TEST_CASE("a million awaits of children that complete at once use no stack") {
  async::EventLoop loop;
  const auto child = [](int i) -> Task<int> { co_return i & 1; };
  const auto parent = [&]() -> Task<long> {
    co_await loop.sleep_for(1ms);  // from here on it runs inside the loop's resumption
    long sum = 0;
    for (int i = 0; i < 1'000'000; ++i)
      sum += co_await child(i);
    co_return sum;
  };
  CHECK(loop.run_until(parent(), soon()) == 500'000);
}

TEST_CASE("a hundred thousand awaits of children that suspend use no stack") {
  async::EventLoop loop;
  const auto child = [&]() -> Task<int> {
    co_await loop.sleep_for(0ms);
    co_return 1;
  };
  const auto parent = [&]() -> Task<long> {
    long sum = 0;
    for (int i = 0; i < 100'000; ++i)
      sum += co_await child();
    co_return sum;
  };
  CHECK(loop.run_until(parent(), soon()) == 100'000);
}

}  // namespace
