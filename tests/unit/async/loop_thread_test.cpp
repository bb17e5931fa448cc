#include "dtrain/async/loop_handle.hpp"
#include "support/no_threads.hpp"
#include "unit/async/prelude.hpp"

namespace {

TEST_CASE("run_blocking returns a task's value, and throws what it throws") {
  LoopThread thread;
  const auto value = [](EventLoop& loop) -> Task<std::unique_ptr<int>> {
    co_await loop.sleep_for(1ms);
    co_return std::make_unique<int>(4);
  };
  CHECK(*thread.run_blocking(value, soon()) == 4);
  const auto fails = [](EventLoop&) -> Task<void> {
    throw std::runtime_error("on the loop");
    co_return;
  };
  CHECK_THROWS_WITH(thread.run_blocking(fails, soon()), "on the loop");
  const auto cannot_begin = [](EventLoop&) -> Task<void> { throw std::runtime_error("before the task"); };
  CHECK_THROWS_WITH(thread.run_blocking(cannot_begin, soon()), "before the task");
}

TEST_CASE("where no thread can be had, the sentence says what it was for") {
  std::string of_a_loop;
  std::string of_a_worker;
  {
    const support::NoThreads none;
    try {
      const LoopThread thread;
    } catch (const std::exception& error) {
      of_a_loop = error.what();
    }
    try {
      const async::WorkerThread worker;
    } catch (const std::exception& error) {
      of_a_worker = error.what();
    }
  }
  CHECK(of_a_loop == "starting the thread of an event loop: Resource temporarily unavailable");
  CHECK(of_a_worker == "starting a channel's thread: Resource temporarily unavailable");
  CHECK_NOTHROW(LoopThread());
}

TEST_CASE("a run_blocking that times out has destroyed its task: the caller's locals are its own again") {
  LoopThread thread;
  for (int round = 0; round < 50; ++round) {
    long steps = 0;
    bool destroyed = false;
    struct Flag {
      ~Flag() { set = true; }
      bool& set;
    };
    const auto spin = [&](EventLoop& loop) -> Task<void> {
      const Flag flag{destroyed};
      for (;;) {
        ++steps;
        co_await loop.sleep_for(0ms);
      }
    };
    CHECK_THROWS_WITH_AS(thread.run_blocking(spin, Deadline::after(1ms), "spinning"), "spinning: the deadline passed",
                         Error);
    CHECK((destroyed || steps == 0));
    steps = -1;  // a race, if the task still ran
  }
}

TEST_CASE("tasks that end about when their deadline passes either end or are cancelled, never both") {
  LoopThread thread;
  int ended = 0;
  int late = 0;
  for (int round = 0; round < 200; ++round) {
    const auto body = [](EventLoop& loop) -> Task<int> {
      co_await loop.sleep_for(1ms);
      co_return 1;
    };
    try {
      ended += thread.run_blocking(body, Deadline::after(std::chrono::microseconds(1000 + 5 * round)));
    } catch (const Error& error) {
      CHECK(error.code() == Errc::timeout);
      ++late;
    }
  }
  CHECK(ended + late == 200);
}

TEST_CASE("many threads may block on one loop") {
  LoopThread thread;
  std::atomic<int> sum{0};
  {
    std::vector<std::jthread> callers;
    for (int i = 0; i < 4; ++i) {
      callers.emplace_back([&] {
        for (int k = 0; k < 100; ++k)
          sum += thread.run_blocking([k](EventLoop&) -> Task<int> { co_return k; }, soon());
      });
    }
  }
  CHECK(sum == 4 * 4950);
}

TEST_CASE("run_blocking from the loop's own thread is an error, never a hang") {
  LoopThread thread;
  const auto outer = [&](EventLoop&) -> Task<void> {
    thread.run_blocking([](EventLoop&) -> Task<void> { co_return; }, soon());
    co_return;
  };
  CHECK_ERROR(thread.run_blocking(outer, soon()), Errc::invalid_argument);
}

TEST_CASE("a thread whose calls are refused starts and waits for nothing, and its tasks and other threads go on") {
  LoopThread thread;
  const auto task = [](EventLoop& loop) -> Task<int> {
    co_await loop.sleep_for(1ms);
    co_return 4;
  };
  auto started = thread.handle()->spawn(task);
  thread.handle()->refuse_calls("not now");
  CHECK_THROWS_WITH_AS(thread.handle()->require_allowed(), "not now", dtrain::Error);
  CHECK_THROWS_WITH_AS(thread.run_blocking(task, soon()), "not now", dtrain::Error);
  CHECK_THROWS_WITH_AS(started.wait(soon()), "not now", dtrain::Error);
  int of_another = 0;
  std::thread([&] { of_another = thread.run_blocking(task, soon()); }).join();
  CHECK(of_another == 4);
  thread.handle()->allow_calls();
  CHECK(started.wait(soon()) == 4);
  CHECK(thread.run_blocking(task, soon()) == 4);
}

TEST_CASE("a loop that ended by an exception says so to every later caller") {
  LoopThread thread;
  thread.loop().post([] { throw std::runtime_error("the ground is gone"); });
  const auto body = [](EventLoop& loop) -> Task<void> { co_await loop.sleep_for(1h); };
  for (int i = 0; i < 2; ++i) {
    CHECK_THROWS_WITH_AS(thread.run_blocking(body, soon(), "working"),
                         "working: the event loop ended because of: the ground is gone", Error);
  }
}

TEST_CASE("stopping the loop frees those who wait") {
  LoopThread thread;
  const auto stops = [](EventLoop& loop) -> Task<void> {
    loop.stop();
    co_await loop.sleep_for(1h);
  };
  CHECK_THROWS_WITH_AS(thread.run_blocking(stops, soon(), "working"), "working: the event loop has ended", Error);
}

}  // namespace
