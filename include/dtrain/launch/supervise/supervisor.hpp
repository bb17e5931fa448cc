#pragma once
/// @file
/// Supervisor of an Attempt: watches its workers to the last one's end, and ends them after a failure. MemoryKills:
/// kills for lack of memory.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/events.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/process/control_groups.hpp"
#include "dtrain/core/process/system_files.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/nodes/job_coordinator.hpp"
#include "dtrain/launch/shutdown_schedule.hpp"
#include "dtrain/launch/supervise/signal_forwarder.hpp"
#include "dtrain/launch/supervise/workers.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Compares the counter of kills of this process's control group, which its workers are in, with that at construction.
/// The kernel adds to it before the signal. Source: Documentation/admin-guide/cgroup-v2 (memory.events) in Linux, and
/// memory.oom_control of version 1.
class MemoryKills {
 public:
  explicit MemoryKills(SystemFiles files = SystemFiles())
      : files_(std::move(files)),
        groups_(control_groups(files_.text("/proc/self/cgroup").value_or(""), "memory")),
        explained_(count()) {}

  /// Call it once for each worker's end. @param has_killed whether the launcher has sent SIGKILL
  /// @returns " (out of memory: the cgroup's limit is 4 GiB)" for SIGKILL if there was a kill that no earlier call
  /// explained; else an empty text
  std::string explain(const ExitStatus& status, bool has_killed) {
    if (status.signal != SIGKILL || has_killed || count() <= explained_) {
      return {};
    }
    ++explained_;
    const std::uint64_t limit = limit_bytes();
    return limit == no_limit ? std::string(" (out of memory: the host has no more)")
                             : format_text(" (out of memory: the cgroup's limit is {})", {size_text(limit)});
  }

  /// "4 GiB"; in the largest unit of which the size is a multiple.
  static std::string size_text(std::uint64_t bytes) {
    const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    std::size_t unit = 0;
    for (; unit + 1 < std::size(units) && bytes >= 1024 && bytes % 1024 == 0; ++unit) {
      bytes /= 1024;
    }
    return format_text("{} {}", {bytes, units[unit]});
  }

 private:
  static constexpr std::uint64_t no_limit = std::uint64_t{1}
                                            << 60;  ///< version 1 writes more than this, version 2 "max"

  std::string text(const ControlGroup& group, const char* second_version, const char* first_version) const {
    return files_.text(group.folder + (group.is_first_version ? first_version : second_version)).value_or("");
  }

  /// Kills in the closest control group that has the file, whose counter includes the groups below. 0 if the kernel
  /// does not count.
  std::uint64_t count() const {
    constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();
    for (const ControlGroup& group : groups_) {
      const std::string events = "\n" + text(group, "/memory.events", "/memory.oom_control");
      const std::uint64_t kills = number_after(events, "\noom_kill ", unknown);
      if (kills != unknown) {
        return kills;
      }
    }
    return 0;
  }

  std::uint64_t limit_bytes() const {
    std::uint64_t limit = no_limit;
    for (const ControlGroup& group : groups_) {
      limit = std::min(limit, number_after(text(group, "/memory.max", "/memory.limit_in_bytes"), "", no_limit));
    }
    return limit;
  }

  SystemFiles files_;
  std::vector<ControlGroup> groups_;
  std::uint64_t explained_;  ///< kills that need no explanation any more
};

/// Objects of the launcher that an attempt uses. Lifetime: they outlive the attempt.
struct AttemptServices {
  async::EventLoop& loop;
  async::AutoResetEvent& changed;  ///< the forwarder and the coordinator set it
  const SignalReader& signals;
  SignalForwarder& forwarder;
  TerminalOutput& output;
  JobCoordinator& coordinator;
};

/// Request that workers end, which those did not follow that a launcher kills.
struct EndRequest {
  int signal = 0;             ///< forwarded one; 0: the launcher has sent SIGTERM itself
  const char* noun = "rank";  ///< word for a worker in the sentence
};

/// Does what the schedule says, and says whom it kills.
inline void follow(ShutdownSchedule& schedule, Deadline::Clock::time_point now, const Workers& workers,
                   const AttemptServices& services, const EndRequest& request) {
  const ShutdownSchedule::Action action = schedule.due(now);
  if (action == ShutdownSchedule::Action::kill && workers.running() != 0) {
    const std::string list = rendezvous::rank_list(workers.running_ranks(), 16, request.noun);
    services.output.error().line("dtrain: ",
                                 format_text("the launcher kills what has not ended after {}: {}",
                                             {signal_name(request.signal == 0 ? SIGTERM : request.signal), list}));
  }
  workers.act(action);
}

/// When a worker fails, here or on another node, the supervisor ends the other workers. If they end within a second of
/// SIGTERM, the attempt ends at most 1.3 s after the first failure, or 6 s if they compute on devices.
/// Lifetime: the constructor's arguments outlive it. Threads: the loop's.
class Supervisor {
 public:
  Supervisor(const AttemptServices& services, Workers& workers, MemoryKills& memory_kills, ShutdownSchedule schedule,
             std::chrono::nanoseconds liveness, std::string host)
      : services_(services),
        workers_(workers),
        memory_kills_(memory_kills),
        host_(std::move(host)),
        liveness_(liveness),
        schedule_(std::move(schedule)),
        stopped_(liveness) {}
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Ends when no worker and no other process of the workers' groups runs, or when waiting for killed ones timed out.
  async::Task<void> watch() {
    for (;;) {
      const std::vector<Workers::Ended> ended = workers_.reap();
      for (const Workers::Ended& each : ended) {
        co_await note(each);
      }
      if (workers_.running() == 0) {
        break;
      }
      const Deadline::Clock::time_point now = Deadline::Clock::now();
      note_stopped(now);
      take_requests(now);
      follow(schedule_, now, workers_, services_, {services_.forwarder.stop_signal(), "rank"});
      report_waiting(now);
      if (schedule_.has_given_up(now)) {
        break;  // the kernel has not ended a process yet, and does so later
      }
      const auto longest = now + (schedule_.killed_at() ? Deadline::Clock::duration(std::chrono::milliseconds(50))
                                                        : Deadline::Clock::duration(std::chrono::hours(1)));
      const auto next = std::min(schedule_.next().value_or(longest), stopped_.next().value_or(longest));
      co_await services_.changed.wait(Deadline::at(std::min(next, longest)));
    }
    co_await reap_orphans();
  }

  /// The workers' ends, in the order in which the supervisor noticed them.
  const std::vector<WorkerEnd>& ends() const noexcept { return ends_; }

  /// Whether a killed worker has not ended.
  bool abandoned() const noexcept { return schedule_.killed_at() && workers_.running() != 0; }

 private:
  static constexpr std::chrono::milliseconds orphan_timeout{300};

  /// Prints one line if a killed process has not ended after a second.
  void report_waiting(Deadline::Clock::time_point now) {
    const auto& killed_at = schedule_.killed_at();
    if (killed_at && !reported_waiting_ && now - *killed_at > std::chrono::seconds(1)) {
      reported_waiting_ = true;
      const std::size_t workers = workers_.running();
      services_.output.error().line(
          "dtrain: ",
          format_text(
              "{} killed {} not ended yet, and device memory stays in use until then: waiting for at most {}",
              {workers, workers == 1 ? "worker has" : "workers have", duration_text(schedule_.kill_timeout())}));
    }
  }

  /// Reaps the killed processes of the workers' groups, which become children of this process one by one.
  async::Task<void> reap_orphans() {
    const Deadline deadline = Deadline::after(orphan_timeout);
    while (!workers_.groups_are_gone() && !deadline.passed()) {
      co_await services_.loop.sleep_for(std::chrono::milliseconds(1));
      static_cast<void>(workers_.reap());
    }
  }

  async::Task<void> note(Workers::Ended ended) {
    WorkerEnd end{.rank = ended.rank, .status = ended.status, .stopped = schedule_.has_acted()};
    end.explanation = memory_kills_.explain(ended.status, end.stopped);
    if (ended.status == ExitStatus{}) {
      end.left = co_await services_.coordinator.has_left(ended.rank);
    }
    ends_.push_back(end);
    if (!end.failed()) {
      co_return;
    }
    schedule_.on_failure(Deadline::Clock::now());
    const Cause loss{CauseKind::lost, end.rank, host_, end.text()};
    services_.coordinator.on_worker_failed(loss, end.is_secondary());
  }

  /// Workers that are stopped before they have joined: the store does not know them, only their launcher does.
  void note_stopped(Deadline::Clock::time_point now) {
    std::vector<StoppedWorker> stopped = schedule_.has_acted() ? std::vector<StoppedWorker>{} : workers_.stopped();
    std::erase_if(stopped, [this](const StoppedWorker& each) { return services_.coordinator.has_joined(each.rank); });
    for (const StoppedWorker& each : stopped_.lost(stopped, now)) {
      const Cause loss{CauseKind::lost, each.rank, host_, each.text(liveness_)};
      services_.coordinator.on_worker_failed(loss, false);
      schedule_.on_failure(now);
    }
  }

  void take_requests(Deadline::Clock::time_point now) {
    for (; stops_noted_ < services_.forwarder.stop_requests(); ++stops_noted_) {
      schedule_.on_stop_requested(now);
    }
    if (services_.coordinator.failing()) {
      schedule_.on_failure(now);
    }
  }

  const AttemptServices& services_;
  Workers& workers_;
  MemoryKills& memory_kills_;
  std::string host_;
  std::chrono::nanoseconds liveness_;
  ShutdownSchedule schedule_;
  StoppedWorkers stopped_;
  int stops_noted_ = 0;
  bool reported_waiting_ = false;
  std::vector<WorkerEnd> ends_;
};

}  // namespace DTRAIN_NAMESPACE::launch
