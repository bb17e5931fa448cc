#include "dtrain/core/log.hpp"

#include <fcntl.h>
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

/// Makes stderr a pipe of two pages, for a forked process that a signal ends if it is blocked. @returns the pipe's
/// other end; -1 where that fails
int stderr_of_two_pages() {
  static_cast<void>(::alarm(20));
  int ends[2] = {-1, -1};
  const bool is_made = ::pipe(ends) == 0 && ::fcntl(ends[1], F_SETPIPE_SZ, 8192) == 8192 &&
                       ::dup2(ends[1], STDERR_FILENO) == STDERR_FILENO && ::close(ends[1]) == 0 &&
                       ::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0;
  return is_made ? ends[0] : -1;
}

/// All that is in the pipe.
std::string taken_from(int reader) {
  std::string text(65536, '\0');
  const ssize_t count = ::read(reader, text.data(), text.size());
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return text;
}

}  // namespace

TEST_CASE("a line that a full stderr does not take is dropped, and later ones are written again") {
  const int ended = support::in_child([] {
    const int reader = stderr_of_two_pages();
    if (reader < 0) return 1;
    const std::string page(4096, 'x');
    for (int i = 0; i < 2; ++i) {
      if (::write(STDERR_FILENO, page.data(), page.size()) != 4096) return 2;
    }
    for (int i = 0; i < 1000; ++i)  // in 20 s: none waits after the first
      log(LogLevel::error, "nobody reads this");
    if (taken_from(reader) != page + page) return 3;
    log(LogLevel::error, "read");
    return taken_from(reader) == "dtrain: read\n" ? 0 : 4;
  });
  CHECK(ended == 0);
}

TEST_CASE("a line that is longer than the room in a pipe does not wait for its reader") {
  const int ended = support::in_child([] {
    const int reader = stderr_of_two_pages();
    if (reader < 0) return 1;
    log(LogLevel::error, "first");
    log(LogLevel::error, std::string(10'000, 'x'));
    if (!taken_from(reader).starts_with("dtrain: first\ndtrain: xxx")) return 2;
    log(LogLevel::error, std::string(6'000, 'y'));
    return taken_from(reader) == "dtrain: " + std::string(6'000, 'y') + "\n" ? 0 : 3;
  });
  CHECK(ended == 0);
}

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
