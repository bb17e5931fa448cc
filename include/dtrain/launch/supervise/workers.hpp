#pragma once
/// @file
/// The worker processes of one launcher: their signals, their ends, their output.

#include <poll.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "dtrain/launch/output/output_relay.hpp"
#include "dtrain/launch/output/stdin_forwarder.hpp"
#include "dtrain/launch/supervise/exit_status.hpp"
#include "dtrain/launch/supervise/process_tree.hpp"
#include "dtrain/launch/supervise/stopped_workers.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Owns what it is given; processes that still run when it is destroyed are killed and reaped, with all that is in
/// their groups. Threads: the loop's.
class Workers {
 public:
  struct Ended {
    int rank = 0;
    ExitStatus status;
  };

  explicit Workers(async::EventLoop& loop) noexcept : loop_(&loop) {}
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Blocking: until the processes are reaped, a second at most: one that the kernel or a debugger holds is left to it.
  ~Workers() {
    kill_groups();
    const Deadline deadline = Deadline::after(std::chrono::seconds(1));
    for (const ChildProcess& worker : workers_) {
      while (worker.process > 0 && ::waitpid(worker.process, nullptr, WNOHANG) == 0 && !deadline.passed()) {
        static_cast<void>(::poll(nullptr, 0, 1));
      }
    }
  }

  /// Takes over a process that leads its own group, and starts to relay what it writes.
  /// @param is_wrapped whether it is the command of --wrap, which may stay the parent of the rank
  /// @param input may be null
  void add(int rank, pid_t process, bool is_wrapped, std::unique_ptr<OutputRelay> output,
           std::unique_ptr<OutputRelay> error, std::unique_ptr<StdinForwarder> input) {
    ChildProcess worker;
    worker.rank = rank;
    worker.process = process;
    worker.is_wrapped = is_wrapped;
    worker.group = process;
    worker.output = std::move(output);
    worker.error = std::move(error);
    worker.input = std::move(input);
    workers_.push_back(std::move(worker));  // from here on it ends with this
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

  /// Sends a signal to each worker, not to what it has started, nor to a wrapper that is its parent: a shell or perf
  /// would end of it, and with it the worker's last output.
  void signal_each(int signal) const {
    for (const ChildProcess& worker : workers_) {
      const std::vector<pid_t> rank = worker.is_wrapped ? rank_below(worker.process) : std::vector<pid_t>{};
      send(worker, rank.empty() ? worker.process : rank.front(), signal);
    }
  }

  /// Sends a signal to each worker's group, as a terminal would, and to a worker that has moved to another group. Again
  /// not to a wrapper.
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

  /// Kills each worker's group, a wrapper included.
  void kill_groups() const noexcept {
    for (const ChildProcess& worker : workers_) {
      send_to_group(worker, SIGKILL);
    }
  }

  /// Reaps every child that has ended, also those that a worker left to this process (it is their subreaper), and kills
  /// what an ended worker leaves in its group. Blocking: no.
  std::vector<Ended> reap() {
    std::vector<Ended> ended;
    for (;;) {
      siginfo_t info{};
      const int result = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT);
      if (result != 0 && errno == EINTR) {
        continue;
      }
      if (result != 0 || info.si_pid == 0) {
        return ended;
      }
      const auto worker = std::find_if(workers_.begin(), workers_.end(),
                                       [&info](const ChildProcess& each) { return each.process == info.si_pid; });
      if (worker != workers_.end()) {
        // While it is a zombie its number can belong to no other group.
        static_cast<void>(::kill(-worker->process, SIGKILL));
        worker->process = 0;
        ended.push_back({worker->rank, ExitStatus::of(info)});
      }
      while (::waitpid(info.si_pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }

  /// The workers that are stopped now, and that no debugger holds; wrapped ones are their wrapper's. Blocking: no.
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

  /// Whether nothing is left of the groups of the workers that have ended: a process that was killed takes a moment to
  /// go, and stays a zombie until it is reaped. Blocking: no.
  bool groups_are_gone() const noexcept {
    return std::all_of(workers_.begin(), workers_.end(), [](const ChildProcess& worker) {
      return worker.process > 0 || (::kill(-worker.group, 0) != 0 && errno == ESRCH);
    });
  }

  /// Whether all that the workers have written is on its way to the console.
  bool output_is_drained() const noexcept {
    return std::all_of(workers_.begin(), workers_.end(), [](const ChildProcess& worker) {
      return worker.output->is_drained() && worker.error->is_drained();
    });
  }

  /// Stops relaying, and shows last lines that have no end.
  void finish_output() {
    for (ChildProcess& worker : workers_) {
      worker.tasks.clear();
      worker.output->finish();
      worker.error->finish();
    }
  }

  /// The last lines that a worker wrote to stderr.
  const Tail& error_tail(int rank) const {
    return std::find_if(workers_.begin(), workers_.end(),
                        [rank](const ChildProcess& each) { return each.rank == rank; })
        ->error->tail();
  }

 private:
  struct ChildProcess {
    int rank = 0;
    pid_t process = 0;  ///< 0 once it is reaped
    pid_t group = 0;    ///< the number that it had
    bool is_wrapped = false;
    std::unique_ptr<OutputRelay> output;
    std::unique_ptr<OutputRelay> error;
    std::unique_ptr<StdinForwarder> input;
    std::vector<async::TaskHandle> tasks;  ///< destroyed before what they use
  };

  static void send(const ChildProcess& worker, pid_t process, int signal) noexcept {
    if (worker.process > 0) {
      static_cast<void>(::kill(process, signal));  // one that has just ended is a zombie: no error
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
