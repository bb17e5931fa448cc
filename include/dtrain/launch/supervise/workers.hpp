#pragma once
/// @file
/// Workers of an Attempt: a launcher's worker processes: signals, reaping, output. StoppedWorkers: stopped by SIGSTOP.
/// StdinForwarder: typed lines.

#include <poll.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/exit_status.hpp"
#include "dtrain/launch/output/output_relay.hpp"
#include "dtrain/launch/process_tree.hpp"
#include "dtrain/launch/shutdown_schedule.hpp"
namespace DTRAIN_NAMESPACE::launch {

/// The worker reads a pipe, because SIGTTIN stops a worker in its own process group when it reads the terminal.
/// Lifetime: outlives the task of run(). Threads: the loop's.
class StdinForwarder {
 public:
  /// @param source a terminal's descriptor; the caller still owns it
  /// @param pipe the writing end; closed at the end of the source, or when the worker has closed the reading end
  StdinForwarder(async::EventLoop& loop, int source, Descriptor pipe)
      : loop_(&loop), source_(source), pipe_(std::move(pipe)) {
    make_nonblocking(pipe_, "preparing the pipe of a worker's input");
  }
  StdinForwarder(const StdinForwarder&) = delete;
  StdinForwarder& operator=(const StdinForwarder&) = delete;

  /// Forwards until the pipe is closed.
  async::Task<void> run() {
    std::array<char, 4096> buffer;
    while (pipe_) {
      if (in_background()) {
        co_await loop_->sleep_for(std::chrono::milliseconds(500));  // the shell reads the terminal now
        continue;
      }
      const async::WakeReason ready = co_await loop_->readable(source_, Deadline::after(std::chrono::seconds(1)));
      if (ready == async::WakeReason::timed_out || in_background()) {
        continue;
      }
      const ssize_t count = ::read(source_, buffer.data(), buffer.size());
      const int error = count < 0 ? errno : 0;
      if (error == EINTR || error == EAGAIN) {
        co_await loop_->sleep_for(std::chrono::milliseconds(10));
      } else if (count <= 0) {
        pipe_.reset();
      } else {
        co_await write_all(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
      }
    }
  }

 private:
  bool in_background() const noexcept {
    const pid_t foreground = ::tcgetpgrp(source_);
    return foreground >= 0 && foreground != ::getpgrp();
  }

  async::Task<void> write_all(std::string_view bytes) {
    while (pipe_ && !bytes.empty()) {
      const ssize_t count = ::write(pipe_.get(), bytes.data(), bytes.size());
      const int error = count < 0 ? errno : 0;
      if (count >= 0) {
        bytes.remove_prefix(static_cast<std::size_t>(count));
      } else if (error == EAGAIN) {
        co_await loop_->writable(pipe_.get(), Deadline::unbounded("the worker reads, or ends and closes the pipe"));
      } else if (error != EINTR) {
        pipe_.reset();  // the worker has closed its stdin or ended
      }
    }
  }

  async::EventLoop* loop_;
  int source_;
  Descriptor pipe_;
};

/// A worker whose process is stopped now.
struct StoppedWorker {
  int rank = 0;
  pid_t process = 0;
  int signal = 0;

  /// The cause for a worker that had not joined the job. @param liveness how long the launcher waited for it
  std::string text(std::chrono::nanoseconds liveness) const {
    return format_text(
        "its process {} was stopped by {} before it had joined the job, and has not gone on for {}; if the stop is "
        "intended, raise DTRAIN_LIVENESS_SECONDS",
        {process, signal_name(signal), duration_text(liveness)});
  }
};

/// A worker that is stopped for the liveness time is lost, as is a joined rank that sends nothing for that time.
class StoppedWorkers {
 public:
  using Clock = Deadline::Clock;

  explicit StoppedWorkers(std::chrono::nanoseconds liveness)
      : liveness_(std::chrono::ceil<Clock::duration>(std::min<std::chrono::nanoseconds>(liveness, longest))) {}

  /// @param stopped all workers that are stopped now and have not joined the job
  /// @returns workers that have been stopped for the liveness time, each once in that time. If the launcher itself was
  /// stopped in between, their time starts again.
  std::vector<StoppedWorker> lost(const std::vector<StoppedWorker>& stopped, Clock::time_point now) {
    const bool was_stopped = next() && now > *next() + liveness_ / 2;
    std::vector<StopTime> since;
    std::vector<StoppedWorker> lost;
    for (const StoppedWorker& each : stopped) {
      Clock::time_point begin = now;
      for (const StopTime& before : since_) {
        if (before.process == each.process && !was_stopped) {
          begin = before.begin;
        }
      }
      const bool is_lost = now - begin >= liveness_;
      since.push_back({each.process, is_lost ? now : begin});
      if (is_lost) {
        lost.push_back(each);
      }
    }
    since_ = std::move(since);
    return lost;
  }

  /// The time at which the next stopped worker is lost.
  std::optional<Clock::time_point> next() const {
    std::optional<Clock::time_point> first;
    for (const StopTime& each : since_) {
      first = std::min(first.value_or(each.begin + liveness_), each.begin + liveness_);
    }
    return first;
  }

 private:
  static constexpr std::chrono::nanoseconds longest = std::chrono::hours(24 * 365);

  /// When a stopped process's time began.
  struct StopTime {
    pid_t process;
    Clock::time_point begin;
  };

  Clock::duration liveness_;
  std::vector<StopTime> since_;
};

/// Owns the workers' processes and output relays. The destructor kills the workers' groups and reaps the workers.
/// Threads: the loop's.
class Workers {
 public:
  struct Ended {
    int rank = 0;
    ExitStatus status;
  };

  explicit Workers(async::EventLoop& loop) noexcept : loop_(&loop) {}
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Blocks until the processes are reaped, at most a second. The kernel or a debugger may keep a process for longer.
  ~Workers() {
    kill_groups();
    const Deadline deadline = Deadline::after(std::chrono::seconds(1));
    for (const ChildProcess& worker : workers_) {
      while (worker.process > 0 && ::waitpid(worker.process, nullptr, WNOHANG) == 0 && !deadline.passed()) {
        static_cast<void>(::poll(nullptr, 0, 1));
      }
    }
  }

  /// Takes ownership of a process that leads its own group, and starts to relay its output.
  /// @param is_wrapped whether the process is the command of --wrap, which may stay the parent of the rank
  /// @param input may be null
  void add(int rank, pid_t process, bool is_wrapped, std::unique_ptr<OutputRelay> output,
           std::unique_ptr<OutputRelay> error, std::unique_ptr<StdinForwarder> input) {
    drop_ended(rank);
    ChildProcess worker;
    worker.rank = rank;
    worker.process = process;
    worker.is_wrapped = is_wrapped;
    worker.group = process;
    worker.output = std::move(output);
    worker.error = std::move(error);
    worker.input = std::move(input);
    workers_.push_back(std::move(worker));  // the destructor ends the process from here on
    ChildProcess& added = workers_.back();
    added.tasks.push_back(loop_->spawn(added.output->run()));
    added.tasks.push_back(loop_->spawn(added.error->run()));
    if (added.input) {
      added.tasks.push_back(loop_->spawn(added.input->run()));
    }
  }

  std::size_t running() const noexcept {
    return static_cast<std::size_t>(
        std::count_if(workers_.begin(), workers_.end(), [](const ChildProcess& worker) { return worker.process > 0; }));
  }

  /// The workers that run, ascending.
  std::vector<int> running_ranks() const {
    std::vector<int> ranks;
    for (const ChildProcess& worker : workers_) {
      if (worker.process > 0) ranks.push_back(worker.rank);
    }
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

  /// Sends a signal to each worker, but not to its descendants, and not to a wrapper that is its parent. The signal
  /// would end a wrapper (a shell, perf), and the worker's last output would be lost.
  void signal_each(int signal) const {
    for (const ChildProcess& worker : workers_) {
      send(worker, process_of(worker), signal);
    }
  }

  /// The same for a signal that means what a program makes of it. @param spares whether it is not sent to
  /// those that it would end @returns the ranks of these, ascending
  std::vector<int> signal_handlers(int signal, bool spares) const {
    std::vector<int> unready;
    for (const ChildProcess& worker : workers_) {
      if (worker.process == 0) continue;
      const pid_t process = process_of(worker);
      const bool is_unready = would_end(process, signal);
      if (is_unready) unready.push_back(worker.rank);
      if (!is_unready || !spares) send(worker, process, signal);
    }
    std::sort(unready.begin(), unready.end());
    return unready;
  }

  /// Sends a signal to each worker's group, as a terminal does, and to a worker that has moved to another group. For a
  /// wrapped worker, sends it to the rank and its descendants, not to the wrapper.
  void signal_groups(int signal) const {
    for (const ChildProcess& worker : workers_) {
      const std::vector<pid_t> rank = worker.is_wrapped ? rank_below(worker.process) : std::vector<pid_t>{};
      for (const pid_t process : rank) {
        send(worker, process, signal);
      }
      if (rank.empty()) {
        send_to_group(worker, signal);
      }
    }
  }

  /// Does what a ShutdownSchedule says.
  void act(ShutdownSchedule::Action action) const {
    if (action == ShutdownSchedule::Action::terminate) {
      signal_each(SIGTERM);
    } else if (action == ShutdownSchedule::Action::kill) {
      kill_groups();
    }
  }

  /// Kills each worker's group, a wrapper included.
  void kill_groups() const noexcept {
    for (const ChildProcess& worker : workers_) {
      send_to_group(worker, SIGKILL);
    }
  }

  void kill_group(pid_t process) const noexcept {
    for (const ChildProcess& worker : workers_) {
      if (worker.process == process) send_to_group(worker, SIGKILL);
    }
  }

  /// Reaps every child that has ended, including orphans of workers (this process is their subreaper). Kills the rest
  /// of an ended worker's group. Blocking: no. @throws Error (posix) if the system does not say which children ended
  std::vector<Ended> reap() {
    std::vector<Ended> ended;
    for (;;) {
      siginfo_t info{};
      const int result = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT);
      if (result != 0 && errno == EINTR) {
        continue;
      }
      if (result != 0 && errno != ECHILD) {
        throw_errno("asking which workers have ended (waitid)");
      }
      if (result != 0 || info.si_pid == 0) {
        return ended;
      }
      const auto worker = std::find_if(workers_.begin(), workers_.end(),
                                       [&info](const ChildProcess& each) { return each.process == info.si_pid; });
      if (worker != workers_.end()) {
        // While the worker is a zombie, its number can belong to no other group.
        static_cast<void>(::kill(-worker->process, SIGKILL));
        worker->process = 0;
        if (worker->input) {         // another worker may read the lines now
          worker->tasks.pop_back();  // the forwarder's, which add() spawned last
          worker->input.reset();
        }
        ended.push_back({worker->rank, ExitStatus::of(info)});
      }
      while (::waitpid(info.si_pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }

  /// Workers that are stopped now and that no debugger traces; without wrapped workers, which may be their wrapper's
  /// children. Blocking: no.
  std::vector<StoppedWorker> stopped() const {
    std::vector<StoppedWorker> found;
    for (const ChildProcess& worker : workers_) {
      siginfo_t info{};
      const auto process = static_cast<id_t>(worker.process);
      const bool is_own = worker.process > 0 && !worker.is_wrapped;
      const int result = is_own ? ::waitid(P_PID, process, &info, WSTOPPED | WNOHANG | WNOWAIT) : -1;
      if (result == 0 && info.si_pid == worker.process) {
        found.push_back({worker.rank, worker.process, info.si_status});
      }
    }
    return found;
  }

  /// Whether no process is left in the groups of ended workers. A killed process takes some time to end, and remains a
  /// zombie until it is reaped. Blocking: no.
  bool groups_are_gone() const noexcept {
    return std::all_of(workers_.begin(), workers_.end(), [](const ChildProcess& worker) {
      return worker.process > 0 || (::kill(-worker.group, 0) != 0 && errno == ESRCH);
    });
  }

  /// Whether all output of the workers has been passed to the console.
  bool output_is_drained() const noexcept {
    return std::all_of(workers_.begin(), workers_.end(), [](const ChildProcess& worker) {
      return worker.output->is_drained() && worker.error->is_drained();
    });
  }

  /// Stops relaying, and prints last lines that lack a newline.
  void finish_output() {
    for (ChildProcess& worker : workers_) {
      worker.tasks.clear();
      worker.output->finish();
      worker.error->finish();
    }
  }

  /// Whether a worker was started as this rank before.
  bool has_had(int rank) const noexcept {
    return std::any_of(workers_.begin(), workers_.end(),
                       [rank](const ChildProcess& each) { return each.rank == rank; });
  }

  /// The last lines that the latest worker of a rank wrote to stderr.
  const Tail& error_tail(int rank) const {
    return std::find_if(workers_.rbegin(), workers_.rend(),
                        [rank](const ChildProcess& each) { return each.rank == rank; })
        ->error->tail();
  }

 private:
  struct ChildProcess {
    int rank = 0;
    pid_t process = 0;  ///< 0 after it is reaped
    pid_t group = 0;    ///< its process id, also after it is reaped
    bool is_wrapped = false;
    std::unique_ptr<OutputRelay> output;
    std::unique_ptr<OutputRelay> error;
    std::unique_ptr<StdinForwarder> input;
    std::vector<async::TaskHandle> tasks;  ///< destroyed before the members that they use
  };

  /// Drops the earlier workers of a rank that is started again, and closes their log files, once all their output is
  /// read.
  void drop_ended(int rank) {
    std::erase_if(workers_, [rank](ChildProcess& each) {
      const bool is_dropped =
          each.rank == rank && each.process == 0 && each.output->is_drained() && each.error->is_drained();
      if (is_dropped) {
        each.tasks.clear();
        each.output->finish();
        each.error->finish();
      }
      return is_dropped;
    });
  }

  /// The rank's, not its wrapper's.
  static pid_t process_of(const ChildProcess& worker) {
    const std::vector<pid_t> rank = worker.is_wrapped ? rank_below(worker.process) : std::vector<pid_t>{};
    return rank.empty() ? worker.process : rank.front();
  }

  static void send(const ChildProcess& worker, pid_t process, int signal) noexcept {
    if (worker.process > 0) {
      static_cast<void>(::kill(process, signal));  // no error for a zombie
    }
  }

  static void send_to_group(const ChildProcess& worker, int signal) noexcept {
    send(worker, -worker.process, signal);
    if (worker.process > 0 && ::getpgid(worker.process) != worker.process) {
      send(worker, worker.process, signal);
    }
  }

  async::EventLoop* loop_;
  std::vector<ChildProcess> workers_;
};

}  // namespace DTRAIN_NAMESPACE::launch
