#pragma once
/// @file
/// Signal forwarder: sends the launcher's signals to the workers of the current attempt.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <utility>

#include "dtrain/async/auto_reset_event.hpp"
#include "dtrain/launch/supervise/signals.hpp"
#include "dtrain/launch/supervise/workers.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Reads signals from its construction to its destruction, also between attempts.
/// Lifetime: the constructor's arguments outlive it. Threads: the loop's.
class SignalForwarder {
 public:
  /// @param changed the forwarder sets it at every signal, SIGCHLD included
  SignalForwarder(async::EventLoop& loop, SignalReader& signals, async::AutoResetEvent& changed)
      : loop_(&loop), signals_(&signals), changed_(&changed), reading_(loop.spawn(read_all())) {}
  SignalForwarder(const SignalForwarder&) = delete;
  SignalForwarder& operator=(const SignalForwarder&) = delete;

  /// Forwards signals to these workers from now on; null: drops them. Lifetime: `workers` lives until the next call.
  void forward_to(const Workers* workers) noexcept { workers_ = workers; }

  /// The handler is called for each SIGINT and SIGTERM to this process. `count`: how many of both have arrived.
  void on_stop(std::function<void(int signal, int count)> handler) { on_stop_ = std::move(handler); }

  /// The launcher of another node received its `count`-th SIGINT or SIGTERM. If this launcher has received as many, it
  /// is the same request: a batch system may signal all launchers at once.
  void on_remote_stop(int signal, int count) {
    remote_stops_ = std::max(remote_stops_, count);
    if (count > local_stops_) {
      note_stop(signal);
      forward(signal);
      changed_->set();
    }
  }

  /// The first SIGINT or SIGTERM; 0 if none has arrived.
  int stop_signal() const noexcept { return stop_signal_; }

  /// Number of SIGINT and SIGTERM at the launcher of the job that received most of them.
  int stop_requests() const noexcept { return std::max(local_stops_, remote_stops_); }

  /// Whether a signal requested the job's end: SIGINT, SIGTERM, SIGHUP or SIGQUIT.
  bool interrupted() const noexcept { return interrupted_; }

 private:
  async::Task<void> read_all() {
    for (;;) {
      co_await loop_->readable(signals_->descriptor(), Deadline::unbounded("the task is destroyed with the launcher"));
      while (const std::optional<int> signal = signals_->next()) {
        if (*signal != SIGCHLD) {
          take(*signal);
        }
      }
      changed_->set();
    }
  }

  void take(int signal) {
    forward(signal);
    interrupted_ = interrupted_ || signal == SIGHUP || signal == SIGQUIT;
    if (signal == SIGTERM || signal == SIGINT) {
      note_stop(signal);
      ++local_stops_;
      if (on_stop_) {
        on_stop_(signal, local_stops_);
      }
    }
    if (signal == SIGTSTP) {
      static_cast<void>(::kill(::getpid(), SIGSTOP));  // SIGTSTP is blocked here, but the shell expects a stopped job
    }
  }

  void note_stop(int signal) noexcept {
    stop_signal_ = stop_signal_ == 0 ? signal : stop_signal_;
    interrupted_ = true;
  }

  /// Signals that a terminal sends to a group go to each worker's group. SIGTERM, SIGUSR1 and SIGUSR2 go to the worker
  /// only, which may pass them on.
  void forward(int signal) const {
    constexpr std::array<int, 3> single{SIGTERM, SIGUSR1, SIGUSR2};
    if (workers_ == nullptr) {
      return;
    }
    if (std::find(single.begin(), single.end(), signal) != single.end()) {
      workers_->signal_each(signal);
    } else {
      workers_->signal_groups(signal);
    }
  }

  async::EventLoop* loop_;
  SignalReader* signals_;
  async::AutoResetEvent* changed_;
  const Workers* workers_ = nullptr;
  std::function<void(int, int)> on_stop_;
  int stop_signal_ = 0;
  int local_stops_ = 0;
  int remote_stops_ = 0;  ///< at the launcher of another node that received most of them
  bool interrupted_ = false;
  async::TaskHandle reading_;
};

}  // namespace DTRAIN_NAMESPACE::launch
