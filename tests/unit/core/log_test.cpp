#include "dtrain/core/log.hpp"

#include <signal.h>

#include "unit/core/prelude.hpp"

namespace {

TEST_CASE("each level is found by its name") {
  CHECK(log_level_of("off") == LogLevel::off);
  CHECK(log_level_of("error") == LogLevel::error);
  CHECK(log_level_of("warning") == LogLevel::warning);
  CHECK(log_level_of("info") == LogLevel::info);
  CHECK(log_level_of("debug") == LogLevel::debug);
}

TEST_CASE("a level that is unset or unknown is warning") {
  CHECK(log_level_of(nullptr) == LogLevel::warning);
  CHECK(log_level_of("") == LogLevel::warning);
  CHECK(log_level_of("DEBUG") == LogLevel::warning);
  CHECK(log_level_of("debug ") == LogLevel::warning);
}

TEST_CASE("a more talkative level is a higher one") {
  CHECK(LogLevel::off < LogLevel::error);
  CHECK(LogLevel::error < LogLevel::warning);
  CHECK(LogLevel::warning < LogLevel::info);
  CHECK(LogLevel::info < LogLevel::debug);
}

}  // namespace

TEST_CASE("a stderr that nobody reads does not end the process that logs, nor change what its signals do") {
  const pid_t process = ::fork();
  REQUIRE(process >= 0);
  if (process == 0) {
    int ends[2] = {-1, -1};
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    const bool ready = ::sigaction(SIGPIPE, &standard, nullptr) == 0 && ::pipe(ends) == 0 && ::close(ends[0]) == 0 &&
                       ::dup2(ends[1], STDERR_FILENO) == STDERR_FILENO;
    dtrain::log(dtrain::LogLevel::error, "nobody reads this");
    sigset_t pending;
    sigset_t blocked;
    const bool as_before = ::sigpending(&pending) == 0 && ::sigismember(&pending, SIGPIPE) == 0 &&
                           ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked) == 0 &&
                           ::sigismember(&blocked, SIGPIPE) == 0;
    ::_exit(ready && as_before ? 7 : 8);
  }
  int status = 0;
  REQUIRE(::waitpid(process, &status, 0) == process);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}
