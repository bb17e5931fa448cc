#include "dtrain/launch/supervise/signal_forwarder.hpp"

#include <poll.h>
#include <stdlib.h>

#include "unit/launch/prelude.hpp"

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

/// Reads a terminal of which another process is in the foreground, in a thread that blocks no signal.
/// @returns errno of the read
int read_in_background(const std::string& terminal) {
  SignalReader signals;
  int error = 0;
  std::thread([&] {
    sigset_t none;
    sigemptyset(&none);
    ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
    const int descriptor = ::open(terminal.c_str(), O_RDONLY | O_NOCTTY);
    char byte = 0;
    error = descriptor >= 0 && ::read(descriptor, &byte, 1) < 0 ? errno : 0;
  }).join();
  return error;
}

/// Kills the process at the deadline. @returns its exit code; -1 for a signal
int exit_code_of(pid_t process) {
  int status = 0;
  for (const dtrain::Deadline deadline = support::soon(); ::waitpid(process, &status, WNOHANG) == 0;) {
    if (deadline.passed()) {
      ::kill(process, SIGKILL);
      ::waitpid(process, &status, 0);
      break;
    }
    ::poll(nullptr, 0, 1);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
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
  CHECK(next_of(signals) == SIGTERM);  // it is readable too before the other thread has sent the signal on
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

TEST_CASE("another thread that reads the terminal in the background fails, and does not try for ever") {
  const int controller = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(controller >= 0);
  REQUIRE(::grantpt(controller) == 0);
  REQUIRE(::unlockpt(controller) == 0);
  const std::string terminal = ::ptsname(controller);
  const pid_t foreground = ::fork();
  REQUIRE(foreground >= 0);
  if (foreground == 0) {
    ::setsid();
    static_cast<void>(::open(terminal.c_str(), O_RDWR));  // the terminal of this session, of which this is in front
    const pid_t background = ::fork();
    if (background == 0) {
      static_cast<void>(::alarm(60));  // it may outlive the other, and then waits for input
      ::setpgid(0, 0);
      ::_exit(read_in_background(terminal));
    }
    ::_exit(background > 0 ? exit_code_of(background) : 127);
  }
  CHECK(exit_code_of(foreground) == EINTR);
  ::close(controller);
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

TEST_CASE("workers get the mask from before the reader, without the signals that a launcher forwards") {
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGALRM}) {
    sigaddset(&blocked, signal);
  }
  REQUIRE(::pthread_sigmask(SIG_SETMASK, &blocked, &before) == 0);
  {
    const SignalReader signals;
    const sigset_t mask = signals.mask_for_workers();
    CHECK(sigismember(&mask, SIGALRM) == 1);
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD, SIGPIPE}) {
      CHECK(sigismember(&mask, signal) == 0);
    }
  }
  REQUIRE(::pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
}

TEST_CASE("a signal would end a process that neither handles, ignores nor blocks it") {
  const Machine machine;
  machine.write("/proc/7/status",
                "Name:\ta\nSigPnd:\tffffffffffffffff\nSigBlk:\t0000000000000001\n"
                "SigIgn:\t0000000000000002\nSigCgt:\t0000000000000204\n");
  for (const int signal : {1, 2, 3, 10}) {
    CHECK(!would_end(7, signal, machine.files()));
  }
  for (const int signal : {4, 11, 12}) {
    CHECK(would_end(7, signal, machine.files()));
  }
  CHECK(!would_end(8, 10, machine.files()));  // there is none
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
