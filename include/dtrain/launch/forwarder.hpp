#pragma once
/// @file
/// Passes the launcher's signals on to the workers of the present attempt.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <utility>

#include "dtrain/async/auto_reset_event.hpp"
#include "dtrain/launch/signals.hpp"
#include "dtrain/launch/workers.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Reads signals from its construction to its destruction, also between attempts. Lifetime: what it is given outlives
/// it. Threads: the loop's.
class Forwarder {
 public:
  /// @param changed is set at every signal, SIGCHLD included
  Forwarder(async::EventLoop& loop, SignalReader& signals, async::AutoResetEvent& changed)
      : loop_(&loop), signals_(&signals), changed_(&changed), reading_(loop.spawn(read_all())) {}
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  /// Who gets the signals from now on; null for nobody. Lifetime: until the next call.
  void forward_to(const Workers* workers) noexcept { workers_ = workers; }

  /// Called with SIGINT or SIGTERM, and how often one of them has come, for each that this process was sent.
  void on_stop(std::function<void(int signal, int count)> handler) { on_stop_ = std::move(handler); }

  /// The launcher of another node was sent SIGINT or SIGTERM, its `count`-th. Where this one has had as many, as when
  /// a batch system tells all of them at once, it is the same request.
  void stop_by(int signal, int count) {
    told_stops_ = std::max(told_stops_, count);
    if (count > own_stops_) {
      note_stop(signal);
      pass_on(signal);
      changed_->set();
    }
  }

  /// The first SIGINT or SIGTERM; 0 while none has come.
  int stop_signal() const noexcept { return stop_signal_; }

  /// How often SIGINT or SIGTERM has come to the one launcher of the job that was sent it most often.
  int stops_asked() const noexcept { return std::max(own_stops_, told_stops_); }

  /// Whether somebody wants the job to end: by SIGINT, SIGTERM, SIGHUP or SIGQUIT.
  bool interrupted() const noexcept { return interrupted_; }

 private:
  async::Task<void> read_all() {
    for (;;) {
      co_await loop_->readable(signals_->descriptor(), Deadline::after(std::chrono::hours(1)));
      while (const std::optional<int> signal = signals_->next()) {
        if (*signal != SIGCHLD) {
          take(*signal);
        }
      }
      changed_->set();
    }
  }

  void take(int signal) {
    pass_on(signal);
    interrupted_ = interrupted_ || signal == SIGHUP || signal == SIGQUIT;
    if (signal == SIGTERM || signal == SIGINT) {
      note_stop(signal);
      ++own_stops_;
      if (on_stop_) {
        on_stop_(signal, own_stops_);
      }
    }
    if (signal == SIGTSTP) {
      static_cast<void>(::kill(::getpid(), SIGSTOP));  // SIGTSTP is blocked here; a shell wants to see its job stopped
    }
  }

  void note_stop(int signal) noexcept {
    stop_signal_ = stop_signal_ == 0 ? signal : stop_signal_;
    interrupted_ = true;
  }

  /// What a terminal sends to a whole group goes to each worker's whole group; the others to the worker, which decides.
  void pass_on(int signal) const {
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
  int own_stops_ = 0;
  int told_stops_ = 0;  ///< of the launcher of another node
  bool interrupted_ = false;
  async::Spawned reading_;
};

}  // namespace DTRAIN_NAMESPACE::launch
