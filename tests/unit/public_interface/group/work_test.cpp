// What a collective with a stream gives: waited for, awaited, or dropped.

#include "unit/public_interface/prelude.hpp"

using support::contains;

TEST_CASE("a Work is waited for, and one that is dropped runs all the same") {
  run_well(3, [](const Group& group) {
    std::array<float, 2> kept{1, 2};
    std::array<float, 1> dropped{static_cast<float>(group.rank())};
    auto work = group.all_reduce(kept, ReduceOp::sum, group.stream());
    group.all_reduce(dropped, ReduceOp::max, group.stream());
    work.wait();
    CHECK(work.is_complete());
    CHECK(kept == std::array<float, 2>{3, 6});
    work.wait();  // once more gives the same
    group.barrier();
    CHECK(dropped[0] == 2);
  });
}

TEST_CASE("asking whether a Work is complete lets it run, where nobody waits for it") {
  run_well(2, [](const Group& group) {
    std::array<float, 1> values{1};
    const auto work = group.all_reduce(values, ReduceOp::sum, group.stream());
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    while (!work.is_complete() && !deadline.passed())
      std::this_thread::yield();
    CHECK(work.is_complete());
    CHECK(values[0] == 2);
    group.barrier();
  });
}

TEST_CASE("a part that is left while a coroutine awaits its collective ends the wait, and the job goes on") {
  run_well(2, [](const Group& group) {
    std::array<float, 1> values{1};
    {
      const auto part = group.split(0);
      auto waiting = group.spawn(
          [work = part.all_reduce(values, ReduceOp::sum, part.stream())]() -> dtrain::Task<> { co_await work; });
      part.barrier();  // behind the collective, which is complete
      part.leave();
      waiting.wait(Deadline::after(std::chrono::seconds(60)));
    }
    CHECK(values[0] == 2);
    group.barrier();
  });
}

TEST_CASE("a coroutine on the control loop awaits a collective that nobody else waits for") {
  run_well(2, [](const Group& group) {
    std::array<double, 1> values{0.5};
    auto work = group.all_reduce(values, ReduceOp::sum, group.stream());
    const double sum = group.run([&]() -> dtrain::Task<double> {
      co_await work;
      co_await work;  // complete by now
      co_return values[0];
    });
    CHECK(sum == 1);
  });
}

TEST_CASE("awaiting on a loop of the program's own is refused, for a collective and for the store") {
  run_well(2, [](const Group& group) {
    std::array<float, 1> values{1};
    auto work = group.all_reduce(values, ReduceOp::sum, group.stream());
    const auto awaits_work = [&]() -> dtrain::Task<> { co_await work; };
    const auto awaits_store = [&]() -> dtrain::Task<> { co_await group.store().set("key", "value"); };
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    const std::string elsewhere =
        "awaited on another thread than the control thread; await it in a coroutine of run or "
        "spawn, or call wait()";
    dtrain::async::EventLoop loop;
    CHECK_THROWS_WITH_AS(loop.run_until(awaits_work(), deadline), ("a collective was " + elsewhere).c_str(),
                         dtrain::Error);
    CHECK_THROWS_WITH_AS(loop.run_until(awaits_store(), deadline), ("setting key 'key': " + elsewhere).c_str(),
                         dtrain::Error);
    work.wait();
    group.store().set("key", "value").wait();
    CHECK(values[0] == 2);
  });
}

TEST_CASE("a Work of a failed job throws its first cause, waited for or awaited") {
  const auto ends = support::run_groups<Policy>(3, [](const Group& group) {
    std::array<float, 1> values{1};
    auto work = group.all_reduce(values, ReduceOp::sum, group.stream());
    if (group.rank() == 0) throw std::runtime_error("the disk is full");
    if (group.rank() == 1) {
      work.wait();
    } else {
      group.run([&]() -> dtrain::Task<> { co_await work; });
    }
  });
  CHECK_CONTAINS(ends[0].text, "the disk is full");
  for (const std::size_t rank : {std::size_t{1}, std::size_t{2}}) {
    CAPTURE(rank);
    CHECK(ends[rank].job_failed);
    CHECK_CONTAINS(ends[rank].text, "rank 0 on host ", "the disk is full");
  }
}

TEST_CASE("wait() in a coroutine is an error, never a hang") {
  run_well(2, [](const Group& group) {
    std::array<float, 1> values{1};
    auto work = group.all_reduce(values, ReduceOp::sum, group.stream());
    const std::string said = group.run([&]() -> dtrain::Task<std::string> {
      std::string text;
      try {
        work.wait();
      } catch (const dtrain::Error& error) {
        text = error.what();
      }
      co_return std::move(text);
    });
    CHECK_CONTAINS(said, "control loop");
    work.wait();
    CHECK(values[0] == 2);
  });
}

TEST_CASE("check() throws the first cause of a failed job, on this rank alone, and else does nothing") {
  support::run_groups<Policy>(2, [](const Group& group) {
    group.check();  // no other rank is asked: nobody waits for one that does not call it
    group.barrier();
    if (group.rank() == 0) throw std::runtime_error("the disk is full");
    CHECK_THROWS_AS(group.store().get("never", Deadline::after(std::chrono::seconds(60))).wait(), dtrain::JobFailed);
    CHECK_THROWS_AS(group.check(), dtrain::JobFailed);
  });
}
