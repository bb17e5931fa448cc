#pragma once
/// @file
/// Watches over the workers from their start to the end of the last one.

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/auto_reset_event.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/launch/report.hpp"
#include "dtrain/launch/signals.hpp"
#include "dtrain/launch/stop_plan.hpp"
#include "dtrain/launch/workers.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// What the supervisor wants to know of the job's store, and tells it.
struct JobView {
  std::function<bool(int rank)> has_left;             ///< the rank has said that it is done
  std::function<std::optional<Cause>()> first_cause;  ///< why the job failed, where the ranks have said so
  std::function<void(const Cause&)> report;           ///< a rank's process has ended before it was done
};

/// Forwards signals, ends the others when one worker fails, and knows what to exit with. A job whose workers end within
/// a second of SIGTERM or SIGKILL is over 1.3 s after the first failure. Lifetime: everything it is given outlives it.
/// Threads: the loop's.
class Supervisor {
 public:
  Supervisor(async::EventLoop& loop, SignalReader& signals, Workers& workers, JobView job, std::string host)
      : loop_(&loop),
        signals_(&signals),
        workers_(&workers),
        job_(std::move(job)),
        host_(std::move(host)),
        changed_(loop),
        signal_task_(loop.spawn(read_signals())) {}
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Until no worker runs. @returns the exit code: 0, or the first failing worker's
  async::Task<int> watch() {
    for (;;) {
      const std::vector<Workers::Ended> ended = workers_->reap();
      for (const Workers::Ended& each : ended) {
        co_await note(each);
      }
      if (workers_->running() == 0) {
        break;
      }
      const Deadline::Clock::time_point now = Deadline::Clock::now();
      act(plan_.due(now));
      if (killed_at_ && now - *killed_at_ > unkillable_patience) {
        break;  // a process that the kernel holds; it dies when it is let go
      }
      const auto longest = now + (killed_at_ ? Deadline::Clock::duration(std::chrono::milliseconds(50))
                                             : Deadline::Clock::duration(std::chrono::hours(1)));
      co_await changed_.wait(earlier(Deadline::at(plan_.next().value_or(longest)), Deadline::at(longest)));
    }
    co_await bury_orphans();
    const std::optional<WorkerEnd> first = first_failure(ends_, job_.first_cause());
    co_return first ? first->exit_code() : (killed_at_ ? 128 + SIGKILL : 0);
  }

  /// What to say on stderr once watch() has returned; nothing where all is well.
  std::vector<std::string> report() const {
    const std::optional<Cause> cause = job_.first_cause();
    const std::optional<WorkerEnd> first = first_failure(ends_, cause);
    if (stop_signal_ != 0) {
      return {stop_report(stop_signal_, first, host_)};
    }
    return first ? failure_report(*first, ends_, cause, host_, workers_->error_tail(first->rank))
                 : std::vector<std::string>{};
  }

  /// How often SIGINT or SIGTERM has come.
  int stops_asked() const noexcept { return stops_asked_; }

 private:
  static constexpr std::chrono::milliseconds unkillable_patience{300};
  static constexpr std::chrono::milliseconds leave_patience{200};

  /// What the workers left in their groups has been killed, and becomes this process's children one by one.
  async::Task<void> bury_orphans() {
    const Deadline deadline = Deadline::after(unkillable_patience);
    while (!workers_->groups_are_gone() && !deadline.passed()) {
      co_await loop_->sleep_for(std::chrono::milliseconds(1));
      static_cast<void>(workers_->reap());
    }
  }

  /// A rank leaves before it exits, but the store may not have read that yet.
  async::Task<bool> has_left(int rank) {
    const Deadline deadline = Deadline::after(leave_patience);
    const auto is_lost = [this, rank] {
      const std::optional<Cause> cause = job_.first_cause();
      return cause && cause->rank == rank;
    };
    while (!job_.has_left(rank) && !is_lost() && !deadline.passed()) {
      co_await loop_->sleep_for(std::chrono::milliseconds(5));
    }
    co_return job_.has_left(rank);
  }

  async::Task<void> note(Workers::Ended ended) {
    WorkerEnd end;
    end.rank = ended.rank;
    end.status = ended.status;
    end.stopped = plan_.has_acted();
    if (ended.status == ExitStatus{}) {
      end.left = co_await has_left(ended.rank);
    }
    ends_.push_back(end);
    if (!end.failed()) {
      co_return;
    }
    plan_.failed(Deadline::Clock::now());
    if (!job_.has_left(end.rank) && !end.is_secondary()) {
      const Cause cause{CauseKind::lost, end.rank, host_, end.text()};
      job_.report(cause);
    }
  }

  void act(StopPlan::Action action) {
    if (action == StopPlan::Action::terminate) {
      workers_->signal_each(SIGTERM);
    } else if (action == StopPlan::Action::kill) {
      workers_->signal_groups(SIGKILL);
      killed_at_ = Deadline::Clock::now();
    }
  }

  async::Task<void> read_signals() {
    for (;;) {
      co_await loop_->readable(signals_->descriptor(), Deadline::after(std::chrono::hours(1)));
      while (const std::optional<int> signal = signals_->next()) {
        if (*signal != SIGCHLD) {
          forward(*signal);
        }
      }
      changed_.set();
    }
  }

  /// What a terminal sends to a whole group goes to each worker's whole group; the others to the worker, which decides.
  void forward(int signal) {
    const bool is_single = signal == SIGTERM || signal == SIGUSR1 || signal == SIGUSR2;
    if (is_single) {
      workers_->signal_each(signal);
    } else {
      workers_->signal_groups(signal);
    }
    if (signal == SIGTERM || signal == SIGINT) {
      stop_signal_ = stop_signal_ == 0 ? signal : stop_signal_;
      ++stops_asked_;
      plan_.stop_asked(Deadline::Clock::now());
    }
    if (signal == SIGTSTP) {
      static_cast<void>(::kill(::getpid(), SIGSTOP));  // SIGTSTP is blocked here; a shell wants to see its job stopped
    }
  }

  async::EventLoop* loop_;
  SignalReader* signals_;
  Workers* workers_;
  JobView job_;
  std::string host_;
  StopPlan plan_;
  std::vector<WorkerEnd> ends_;
  std::optional<Deadline::Clock::time_point> killed_at_;
  int stop_signal_ = 0;  ///< the first SIGINT or SIGTERM
  int stops_asked_ = 0;
  async::AutoResetEvent changed_;
  async::Spawned signal_task_;
};

}  // namespace DTRAIN_NAMESPACE::launch
