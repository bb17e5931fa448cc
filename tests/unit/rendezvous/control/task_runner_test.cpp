#include "dtrain/rendezvous/control/task_runner.hpp"
#include "unit/rendezvous/prelude.hpp"

using dtrain::Deadline;
using dtrain::FailureLatch;
using dtrain::async::BackgroundTask;
using dtrain::async::LoopThread;

namespace {

Deadline soon() {
  return Deadline::after(std::chrono::seconds(60));
}
Deadline shortly() {
  return Deadline::after(std::chrono::milliseconds(30));
}

/// A control loop and the tasks of rank 0.
struct Rank {
  LoopThread thread;
  std::shared_ptr<FailureLatch> failure = std::make_shared<FailureLatch>();
  TaskRunner tasks{thread, failure, 0};
};

/// Counts the coroutines that are alive in it.
struct Alive {
  explicit Alive(std::atomic<int>& counter) : count(counter) { ++count; }
  Alive(const Alive&) = delete;
  Alive& operator=(const Alive&) = delete;
  ~Alive() { --count; }
  std::atomic<int>& count;
};

Task<int> sleep_long(EventLoop& loop, std::atomic<int>& alive) {
  const Alive here(alive);
  co_await loop.sleep_for(std::chrono::hours(1));
  co_return 1;
}

void wait_for(std::atomic<int>& value, int wanted) {
  for (const Deadline deadline = soon(); value != wanted && !deadline.passed();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(value == wanted);
}

}  // namespace

TEST_CASE("a coroutine runs on the control loop, and its value or exception comes out") {
  Rank rank;
  const auto where = [&]() -> Task<bool> { co_return rank.tasks.on_loop_thread(); };
  CHECK(rank.tasks.run_blocking(where, soon()));
  CHECK_FALSE(rank.tasks.on_loop_thread());
  const auto with_loop = [](EventLoop& loop) -> Task<std::unique_ptr<int>> {
    co_await loop.sleep_for(std::chrono::milliseconds(1));
    co_return std::make_unique<int>(7);
  };
  CHECK(*rank.tasks.run_blocking(with_loop, soon()) == 7);
  const auto nothing = []() -> Task<> { co_return; };
  rank.tasks.run_blocking(nothing, soon());
  const auto throws = []() -> Task<> {
    throw std::out_of_range("mine");
    co_return;
  };
  CHECK_THROWS_WITH_AS(rank.tasks.run_blocking(throws, soon()), "mine", std::out_of_range);
  const auto throws_at_once = []() -> Task<> { throw std::out_of_range("before it began"); };
  CHECK_THROWS_WITH_AS(rank.tasks.run_blocking(throws_at_once, soon()), "before it began", std::out_of_range);
}

TEST_CASE("a deadline cancels the coroutine, which is gone when run_blocking returns") {
  Rank rank;
  std::atomic<int> alive{0};
  const auto sleeps = [&](EventLoop& loop) { return sleep_long(loop, alive); };
  CHECK(sentence_of(Errc::timeout, [&] { rank.tasks.run_blocking(sleeps, shortly()); }) ==
        "waiting for a coroutine on the control loop: the deadline passed");
  CHECK(alive == 0);
}

TEST_CASE("the job's failure ends every coroutine with its cause, and later ones at their start") {
  Rank rank;
  std::atomic<int> alive{0};
  const auto sleeps = [&](EventLoop& loop) { return sleep_long(loop, alive); };
  auto background = rank.tasks.start(sleeps);
  std::jthread fails([&] {
    for (const Deadline deadline = soon(); alive < 2 && !deadline.passed();) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    rank.failure->set(Cause{CauseKind::lost, 1, "b", "it closed"});
  });
  CHECK(sentence_of(Errc::peer_lost, [&] { rank.tasks.run_blocking(sleeps, soon()); }) ==
        "rank 1 on host b was lost: it closed");
  CHECK(sentence_of(Errc::peer_lost, [&] { background.wait(soon()); }) == "rank 1 on host b was lost: it closed");
  CHECK(alive == 0);
  CHECK(sentence_of(Errc::peer_lost, [&] { rank.tasks.run_blocking(sleeps, soon()); }).find("rank 1") == 0);
  CHECK_THROWS_AS(static_cast<void>(rank.tasks.start(sleeps)), dtrain::PeerLost);
}

TEST_CASE("a coroutine in the background goes on until its owner is destroyed") {
  Rank rank;
  std::atomic<int> alive{0};
  {
    BackgroundTask<int> first = rank.tasks.start([&](EventLoop& loop) { return sleep_long(loop, alive); });
    wait_for(alive, 1);
    CHECK_FALSE(first.done());
    CHECK_ERROR(first.wait(shortly()), Errc::timeout, "the deadline passed");
    CHECK(alive == 1);
    first = rank.tasks.start([&](EventLoop& loop) { return sleep_long(loop, alive); });
    wait_for(alive, 1);
  }
  CHECK(alive == 0);
  auto quick = rank.tasks.start([text = std::make_unique<std::string>("kept")]() -> Task<std::string> {
    co_return *text;  // the lambda lives as long as the coroutine
  });
  CHECK(quick.wait(soon()) == "kept");
  CHECK(quick.done());
  BackgroundTask<int> none;
  CHECK(none.done());
  CHECK_ERROR(none.wait(soon()), Errc::invalid_argument, "there is none");
}

TEST_CASE("what blocks throws on the control thread instead of waiting for itself") {
  Rank rank;
  const auto nested = [&]() -> Task<std::string> {
    const auto inner = []() -> Task<> { co_return; };
    auto background = rank.tasks.start(inner);
    co_return sentence_of(Errc::invalid_argument, [&] { rank.tasks.run_blocking(inner, soon()); }) + "|" +
        sentence_of(Errc::invalid_argument, [&] { background.wait(soon()); });
  };
  CHECK(rank.tasks.run_blocking(nested, soon()) ==
        "waiting for a coroutine on the control loop: called on the control thread, where it would wait for itself; "
        "co_await the coroutine instead|waiting for a coroutine on the control loop: called on the control thread, "
        "where it would wait for itself; co_await the coroutine instead");
}

TEST_CASE("a coroutine may own others, and end itself by destroying its owner") {
  Rank rank;
  std::atomic<int> alive{0};
  const auto parent = [&](EventLoop& loop) -> Task<int> {
    auto never_begun = rank.tasks.start([&](EventLoop& other) { return sleep_long(other, alive); });
    never_begun.cancel();
    auto child = rank.tasks.start([&](EventLoop& other) { return sleep_long(other, alive); });
    while (alive == 0) {
      co_await loop.sleep_for(std::chrono::milliseconds(1));
    }
    co_return alive.load();
  };
  CHECK(rank.tasks.run_blocking(parent, soon()) == 1);
  CHECK(alive == 0);
  std::optional<BackgroundTask<int>> owner;
  std::atomic<bool> begin{false};
  std::atomic<int> reset{0};
  owner = rank.tasks.start([&](EventLoop& loop) -> Task<int> {
    while (!begin) {
      co_await loop.sleep_for(std::chrono::milliseconds(1));
    }
    owner.reset();
    reset = 1;
    const int result = co_await sleep_long(loop, alive);
    co_return result;
  });
  begin = true;
  wait_for(reset, 1);
  rank.tasks.close_blocking();
  CHECK_FALSE(owner);
  CHECK(alive == 0);
}

TEST_CASE("leaving ends every coroutine, and owners that stay longer find them ended") {
  std::atomic<int> alive{0};
  std::optional<BackgroundTask<int>> outlives;
  std::string waiting;
  {
    Rank rank;
    outlives = rank.tasks.start([&](EventLoop& loop) { return sleep_long(loop, alive); });
    std::jthread waits([&] {
      const auto sleeps = [&](EventLoop& loop) { return sleep_long(loop, alive); };
      waiting = sentence_of(Errc::closed, [&] { rank.tasks.run_blocking(sleeps, soon()); });
    });
    wait_for(alive, 2);
    rank.tasks.close_blocking();
    CHECK(alive == 0);
    CHECK(sentence_of(Errc::closed, [&] { static_cast<void>(rank.tasks.start([]() -> Task<> { co_return; })); }) ==
          "starting a coroutine on the control loop: this rank has left the job");
  }
  CHECK(waiting == "a coroutine on the control loop was ended, since this rank has left the job");
  CHECK(outlives->done());
  CHECK_ERROR(outlives->wait(soon()), Errc::closed, "left the job");
}

TEST_CASE("starts, ends, a failure and the rank's end from many threads leave nothing behind") {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> alive{0};
    {
      Rank rank;
      std::vector<std::jthread> threads;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&, i] {
          for (int each = 0; each < 25; ++each) {
            try {
              auto task = rank.tasks.start([&](EventLoop& loop) { return sleep_long(loop, alive); });
              if ((each + i) % 3 == 0) {
                task.wait(Deadline::after(std::chrono::microseconds(100)));
              }
            } catch (const dtrain::Error&) {
            }
          }
        });
      }
      if (round % 2 == 0) {
        rank.failure->set(Cause{CauseKind::stopped, -1, "", "enough"});
      } else {
        rank.tasks.close_blocking();
      }
    }
    REQUIRE(alive == 0);
  }
}
