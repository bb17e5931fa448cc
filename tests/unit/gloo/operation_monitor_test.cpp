#include "dtrain/backend/gloo/transport.hpp"
#include "unit/gloo/prelude.hpp"

#include <signal.h>

namespace {

using dtrain::BlockedWriteSignals;
using dtrain::async::WorkerThread;
using dtrain::backend::gloo::MonitoredOperation;
using dtrain::backend::gloo::OperationMonitor;

/// An operation that blocks until the monitor has looked at it `looks` times; it is cancelled from look `cancelled_at`
/// on.
class BlockedOperation final : public MonitoredOperation {
 public:
  explicit BlockedOperation(std::uint32_t cancelled_at) : cancelled_at_(cancelled_at) {}

  bool end_if_cancelled() noexcept override {
    const bool cancelled = looks_.load() + 1 >= cancelled_at_;
    look();
    return cancelled;
  }
  void stalled() noexcept override { stalls_.fetch_add(1); }

  /// @returns whether the monitor looked so often within a minute
  bool block_until_looks(std::uint32_t count) noexcept {
    const Deadline deadline = Deadline::after(1min);
    for (std::uint32_t seen = looks_.load(); seen < count; seen = looks_.load()) {
      if (dtrain::futex_wait(looks_, seen, deadline, dtrain::FutexScope::process) == dtrain::FutexResult::timed_out) {
        return false;
      }
    }
    return true;
  }
  std::uint32_t stalls() const noexcept { return stalls_.load(); }

 private:
  void look() noexcept {
    looks_.fetch_add(1);
    dtrain::futex_wake_all(looks_, dtrain::FutexScope::process);
  }

  const std::uint32_t cancelled_at_;
  std::atomic<std::uint32_t> looks_{0};
  std::atomic<std::uint32_t> stalls_{0};
};

/// Notes whether the monitor looks at it when it is younger than the monitor's shortest interval.
class NewOperation final : public MonitoredOperation {
 public:
  bool end_if_cancelled() noexcept override {
    was_early_ = was_early_ || age() < 2ms;
    return false;
  }
  void stalled() noexcept override {}

  std::chrono::nanoseconds age() const noexcept { return Deadline::Clock::now() - begin_; }
  bool was_early() const noexcept { return was_early_; }  ///< after OperationMonitor::end()

 private:
  const Deadline::Clock::time_point begin_ = Deadline::Clock::now();
  bool was_early_ = false;
};

}  // namespace

TEST_CASE("an operation that blocks is looked at again and again, and called stalled unless it is cancelled") {
  WorkerThread worker;
  OperationMonitor monitor(worker);
  BlockedOperation operation(3);
  monitor.begin(operation);
  CHECK(operation.block_until_looks(3));
  monitor.end();
  CHECK(operation.stalls() == 2);
  monitor.stop();
}

TEST_CASE("an operation after a pause, in which the monitor has returned, is monitored again") {
  WorkerThread worker;
  OperationMonitor monitor(worker);
  for (int pause = 0; pause < 2; ++pause) {
    BlockedOperation operation(1'000'000);
    monitor.begin(operation);
    CHECK(operation.block_until_looks(1));
    monitor.end();
    CHECK(worker.wait(Deadline::after(1min)));  // nothing to watch: the worker is free
  }
  monitor.stop();
}

TEST_CASE(
    "operations that follow one another without blocking are never called stalled, and none is used after its end") {
  WorkerThread worker;
  OperationMonitor monitor(worker);
  const Deadline deadline = Deadline::after(50ms);
  while (!deadline.passed()) {
    BlockedOperation operation(1'000'000);
    monitor.begin(operation);
    monitor.end();
  }
  monitor.stop();
  CHECK(worker.wait(Deadline::after(1min)));
}

TEST_CASE("the monitor looks at no operation before it has seen it for an interval") {
  WorkerThread worker;
  OperationMonitor monitor(worker);
  bool was_early = false;
  const Deadline deadline = Deadline::after(300ms);
  while (!deadline.passed()) {
    NewOperation operation;
    monitor.begin(operation);
    while (operation.age() < 300us) {
    }
    monitor.end();
    was_early = was_early || operation.was_early();
  }
  CHECK_FALSE(was_early);
  monitor.stop();
}

TEST_CASE("SIGPIPE of a write in the scope ends nothing, and the thread's mask is as before") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  REQUIRE(::close(ends[0]) == 0);
  std::thread writer([&] {  // a thread of its own: a test program may ignore SIGPIPE, and the action is the process's
    struct sigaction before {};
    struct sigaction action {};
    action.sa_handler = SIG_DFL;
    CHECK(::sigaction(SIGPIPE, &action, &before) == 0);
    {
      const BlockedWriteSignals blocked;
      CHECK(::write(ends[1], "x", 1) == -1);
      CHECK(errno == EPIPE);
    }
    sigset_t mask;
    CHECK(::pthread_sigmask(SIG_BLOCK, nullptr, &mask) == 0);
    CHECK(::sigismember(&mask, SIGPIPE) == 0);
    CHECK(::sigaction(SIGPIPE, &before, nullptr) == 0);
  });
  writer.join();
  CHECK(::close(ends[1]) == 0);
}
