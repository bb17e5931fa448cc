#include "dtrain/launch/supervise/signals.hpp"

#include <doctest/doctest.h>
#include <poll.h>

#include <atomic>
#include <csignal>
#include <optional>
#include <thread>

#include "dtrain/core/deadline.hpp"
#include "support/program.hpp"

using dtrain::launch::SignalReader;

namespace {

/// A thread that blocks no signal, as a library may start one: the system may pick it for any signal to the process.
class OpenThread {
 public:
  OpenThread() {
    while (!is_open_) {
      std::this_thread::yield();
    }
  }
  ~OpenThread() { ends_ = true; }

 private:
  std::atomic<bool> is_open_ = false;
  std::atomic<bool> ends_ = false;
  std::jthread thread_{[this] {
    sigset_t none;
    sigemptyset(&none);
    ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
    is_open_ = true;
    while (!ends_) {
      ::poll(nullptr, 0, 1);
    }
  }};
};

void send(int signal) {
  REQUIRE(::kill(::getpid(), signal) == 0);
}

/// The signal that the reader has by the deadline; 0 for none.
int next_of(SignalReader& signals) {
  const dtrain::Deadline deadline = support::soon();
  while (!deadline.passed()) {
    if (const std::optional<int> signal = signals.next()) {
      return *signal;
    }
    pollfd ready{signals.descriptor(), POLLIN, 0};
    ::poll(&ready, 1, 100);
  }
  return 0;
}

struct sigaction action_of(int signal) {
  struct sigaction action {};
  REQUIRE(::sigaction(signal, nullptr, &action) == 0);
  return action;
}

}  // namespace

TEST_CASE("the reader's thread reads a signal to the process, also while other threads block none") {
  for (const bool is_alone : {true, false}) {
    CAPTURE(is_alone);
    std::optional<OpenThread> other;
    if (!is_alone) {
      other.emplace();
    }
    SignalReader signals;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGCHLD}) {
      send(signal);
      CHECK(next_of(signals) == signal);
    }
    CHECK(!signals.next());
  }
}

TEST_CASE("a descriptor waits for the signals that another thread takes") {
  OpenThread other;
  SignalReader signals;
  send(SIGTERM);
  pollfd ready{signals.descriptor(), POLLIN, 0};
  CHECK(::poll(&ready, 1, static_cast<int>(support::soon().remaining() / std::chrono::milliseconds(1))) == 1);
  CHECK(signals.next() == SIGTERM);
}

TEST_CASE("a thread that starts after the reader, and blocks nothing, takes no signal away") {
  SignalReader signals;
  OpenThread later;
  for (const int signal : {SIGCHLD, SIGTERM, SIGCHLD}) {
    send(signal);
    CHECK(next_of(signals) == signal);
  }
}

TEST_CASE("signals of closed pipes, full files and terminals neither end nor stop the process") {
  OpenThread other;
  SignalReader signals;
  for (const int signal : {SIGPIPE, SIGXFSZ, SIGTTIN, SIGTTOU}) {
    send(signal);
  }
  send(SIGUSR1);
  CHECK(next_of(signals) == SIGUSR1);
  CHECK(!signals.next());
}

TEST_CASE("a signal that was ignored before stays ignored") {
  OpenThread other;
  struct sigaction ignored {};
  struct sigaction before {};
  ignored.sa_handler = SIG_IGN;
  REQUIRE(::sigaction(SIGHUP, &ignored, &before) == 0);
  {
    SignalReader signals;
    send(SIGHUP);
    send(SIGUSR1);
    CHECK(next_of(signals) == SIGUSR1);
    CHECK((action_of(SIGHUP).sa_handler == SIG_IGN));
  }
  REQUIRE(::sigaction(SIGHUP, &before, nullptr) == 0);
}

TEST_CASE("the end of the reader restores the handlers and the mask, and drops what is pending") {
  const auto before = action_of(SIGUSR2).sa_handler;
  sigset_t mask;
  {
    SignalReader signals;
    CHECK((action_of(SIGUSR2).sa_handler != before));
    send(SIGUSR2);
    send(SIGPIPE);
  }
  CHECK((action_of(SIGUSR2).sa_handler == before));
  REQUIRE(::pthread_sigmask(SIG_BLOCK, nullptr, &mask) == 0);
  for (const int signal : {SIGUSR2, SIGCHLD, SIGPIPE, SIGTTIN}) {
    CHECK(sigismember(&mask, signal) == 0);
  }
}
