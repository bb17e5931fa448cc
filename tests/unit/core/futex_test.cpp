#include "dtrain/core/futex.hpp"
#include "unit/core/prelude.hpp"

namespace {

using Word = std::atomic<std::uint32_t>;

TEST_CASE("a wait on a word that differs returns at once") {
  Word word{1};
  CHECK(dtrain::futex_wait(word, 0, Deadline::after(60s), FutexScope::process) == FutexResult::awake);
  CHECK(dtrain::futex_wait(word, 0, Deadline::after(60s), FutexScope::shared) == FutexResult::awake);
}

TEST_CASE("a wait ends at its deadline, also at one that has passed") {
  Word word{0};
  for (const FutexScope scope : {FutexScope::process, FutexScope::shared}) {
    const Deadline deadline = Deadline::after(20ms);
    CHECK(dtrain::futex_wait(word, 0, deadline, scope) == FutexResult::timed_out);
    CHECK(deadline.passed());
    CHECK(dtrain::futex_wait(word, 0, deadline, scope) == FutexResult::timed_out);
    CHECK(dtrain::futex_wait(word, 0, Deadline::at({}), scope) == FutexResult::timed_out);
  }
}

TEST_CASE("the time of a thread's waits is its own") {
  Word word{0};
  const auto before = dtrain::WaitTime::of_thread();
  std::thread other(
      [&] { static_cast<void>(dtrain::futex_wait(word, 0, Deadline::after(60ms), FutexScope::process)); });
  static_cast<void>(dtrain::futex_wait(word, 0, Deadline::after(30ms), FutexScope::process));
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable never;
  CHECK_FALSE(dtrain::block_until(never, lock, Deadline::after(20ms), [] { return false; }));
  std::this_thread::sleep_for(20ms);  // no wait of the library
  const auto waited = dtrain::WaitTime::of_thread() - before;
  other.join();
  CHECK(waited >= 15ms);  // a deadline may have been near when its wait began
  CHECK(dtrain::WaitTime::of_thread() - before == waited);
}

TEST_CASE("a wake ends a thread's wait and says how many it woke") {
  for (const FutexScope scope : {FutexScope::process, FutexScope::shared}) {
    Word word{0};
    CHECK(dtrain::futex_wake_all(word, scope) == 0);
    FutexResult result = FutexResult::timed_out;
    std::thread sleeper([&] { result = dtrain::futex_wait(word, 0, Deadline::after(60s), scope); });
    int woken = 0;
    const Deadline patience = Deadline::after(60s);
    while (woken == 0 && !patience.passed())
      woken = dtrain::futex_wake(word, 1, scope);
    sleeper.join();
    CHECK(woken == 1);
    CHECK(result == FutexResult::awake);
  }
}

TEST_CASE("a shared wake ends another process's wait") {
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  Word& word = *new (memory) Word(0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto result = dtrain::futex_wait(word, 0, Deadline::after(60s), FutexScope::shared);
    _exit(result == FutexResult::awake ? 0 : 1);
  }
  const Deadline patience = Deadline::after(60s);
  while (dtrain::futex_wake_all(word, FutexScope::shared) == 0 && !patience.passed())
    std::this_thread::sleep_for(1ms);
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  munmap(memory, 4096);
}

TEST_CASE("a signal handler does not end a wait") {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {};
  REQUIRE(sigaction(SIGUSR1, &action, &before) == 0);
  Word word{0};
  const Deadline deadline = Deadline::after(100ms);
  const pthread_t sleeper = pthread_self();
  std::jthread interrupter([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pthread_kill(sleeper, SIGUSR1);
      std::this_thread::sleep_for(5ms);
    }
  });
  CHECK(dtrain::futex_wait(word, 0, deadline, FutexScope::process) == FutexResult::timed_out);
  CHECK(deadline.passed());
  interrupter.request_stop();
  interrupter.join();
  sigaction(SIGUSR1, &before, nullptr);
}

}  // namespace
