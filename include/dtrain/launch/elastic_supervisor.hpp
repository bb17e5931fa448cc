#pragma once
/// @file
/// ElasticSupervisor: watches a node's workers of an elastic job, and replaces each that fails.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/events.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/configuration/settings.hpp"
#include "dtrain/launch/node_launcher.hpp"
#include "dtrain/launch/nodes/job_coordinator.hpp"
#include "dtrain/launch/nodes/job_result.hpp"
#include "dtrain/launch/output/console.hpp"
#include "dtrain/launch/process_tree.hpp"
#include "dtrain/launch/remote_formation.hpp"
#include "dtrain/launch/shutdown_schedule.hpp"
#include "dtrain/launch/store_host.hpp"
#include "dtrain/launch/supervise/signal_forwarder.hpp"
#include "dtrain/launch/supervise/workers.hpp"
#include "dtrain/rendezvous/formation/formation_server.hpp"
#include "dtrain/rendezvous/membership/host_identity.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Each worker has a slot. In the slot of an ended worker another is started after 0, 1, 2, 4 ... 60 s, once the
/// process is reaped: its device memory is free then. Each worker that the launcher kills is named at once, and counts
/// as lost. Lifetime: the constructor's arguments outlive it. Threads: the loop's.
/// @tparam Formation a FormationServer, or a RemoteFormation
template <class Formation>
class ElasticSupervisor {
 public:
  ElasticSupervisor(Attempt& attempt, const NodeLauncherOptions& options, std::string host_id, Formation& formation)
      : attempt_(attempt),
        workers_(attempt.workers()),
        services_(attempt.services()),
        host_id_(std::move(host_id)),
        is_on_hosts_(options.is_elastic_on_hosts()),
        hosts_store_(options.node.node_rank == 0),
        formation_(formation),
        state_(formation.state()),
        most_restarts_(options.max_restarts),
        left_to_replace_(options.max_restarts),
        schedule_(options.stop_grace, options.shutdown_timeouts),
        slots_(static_cast<std::size_t>(attempt.plan().workers)) {}
  ElasticSupervisor(const ElasticSupervisor&) = delete;
  ElasticSupervisor& operator=(const ElasticSupervisor&) = delete;

  /// Starts the workers. Ends when none runs and none will be started; if other nodes may have workers, on node 0 not
  /// before the job's end.
  async::Task<void> watch() {
    for (;;) {
      look_at_exit_flags();
      for (const Workers::Ended& each : workers_.reap()) {
        note(each);
      }
      const Deadline::Clock::time_point now = Deadline::Clock::now();
      for (; stops_noted_ < stop_requests(); ++stops_noted_) {
        schedule_.on_stop_requested(now);
        if (is_on_hosts_) {
          formation_.stop(format_text("{} came to the launcher of node 0", {signal_name(interrupt_signal())}));
        }
      }
      if (state_.cause()) schedule_.on_failure(now);
      follow(schedule_, now, workers_, services_, {interrupt_signal(), "worker"});
      kill_left_out(now);
      start_due(now);
      tell_formation();
      const bool may_end = !is_on_hosts_ || !hosts_store_ || state_.is_over();
      if ((workers_.running() == 0 && !next_start() && may_end) || schedule_.has_given_up(now)) co_return;
      const Deadline::Clock::time_point look = now + look_interval;
      const auto next = std::min({look, schedule_.next().value_or(look), next_start().value_or(look)});
      co_await services_.changed.wait(Deadline::at(next));
    }
  }

  JobResult result() const {
    JobResult result;
    if (const int stop_signal = interrupt_signal()) {
      result.exit_code = 128 + stop_signal;
      result.report.push_back(format_text("{} was forwarded to the workers", {signal_name(stop_signal)}));
    } else if (state_.is_over() && !state_.cause()) {
      result.exit_code = failed_after_end_;
    } else {
      const bool is_of_worker =
          last_failure_ != 0 && !(state_.cause() && state_.cause()->kind == CauseKind::disagreement);
      result.exit_code = is_of_worker ? last_failure_ : exit_code_job_failed;
      result.report.push_back(state_.cause() ? format_text("the job failed: {}", {state_.cause()->sentence()})
                              : hosts_store_ ? "the job failed: no worker is left"
                                             : "no worker of this node is left; their messages say whether the job has "
                                               "failed or may go on on the other nodes");
    }
    if (lost_ > 0) {
      result.report.push_back(
          format_text("{} {} lost in this job:", {lost_, lost_ == 1 ? "worker was" : "workers were"}));
    }
    for (const std::string& each : losses_) {
      result.report.push_back(format_text("    {}", {each}));
    }
    if (unlisted_ > 0) result.report.push_back(format_text("    and {} more", {unlisted_}));
    if (workers_.running() != 0) {
      result.report.push_back(format_text("killed, and not ended yet: {}",
                                          {rendezvous::rank_list(workers_.running_ranks(), 16, "worker")}));
    }
    return result;
  }

 private:
  /// How often the launcher checks whether a worker's process ends: the kernel sets the flag at once, but frees the
  /// process's memory (0.1 s for each GiB) before the connections close and the parent can reap it.
  static constexpr std::chrono::milliseconds look_interval{20};
  static constexpr std::uint64_t exiting_flag = 4;  // PF_EXITING of Linux' sched.h, whose value never changed
  static constexpr std::size_t most_losses = 20;
  /// How long a worker may run that is no rank of the attempt that has finished the job.
  static constexpr std::chrono::seconds end_timeout{10};
  /// The failure of a worker that has run for so long is not a failed start.
  static constexpr std::chrono::seconds long_life{60};

  struct Slot {
    pid_t process = 0;  ///< 0: no process runs
    pid_t wrapped = 0;  ///< worker's process that a wrapper has started; 0: the wrapper has become the worker, or will
    bool is_exiting = false;
    bool ends_with_job = false;  ///< the process ends after the job, or after a signal that is to end it
    bool is_rank = false;        ///< whether the worker is a rank of the last attempt, as far as it is known
    std::string error{};         ///< the error with which the worker ends, if it is known
    std::string killed_for{};    ///< the clause why this launcher has killed it; empty: it has not
    int failures = 0;            ///< failures in a row
    Deadline::Clock::time_point started_at{};
    std::optional<Deadline::Clock::time_point> start_at{Deadline::Clock::time_point{}};  ///< the first at once
  };

  /// SIGHUP and SIGQUIT also end an elastic job: a worker that such a signal kills would otherwise be replaced. All of
  /// them are one request, because a terminal that closes may send several.
  int stop_requests() const noexcept {
    return std::max(services_.forwarder.stop_requests(), services_.forwarder.interrupted() ? 1 : 0);
  }

  int interrupt_signal() const noexcept { return services_.forwarder.interrupt_signal(); }

  void look_at_exit_flags() {
    for (std::size_t index = 0; index < slots_.size(); ++index) {
      Slot& each = slots_[index];
      if (each.process == 0 || each.is_exiting) continue;
      if (each.wrapped == 0 && attempt_.wraps(static_cast<int>(index))) {
        const std::vector<pid_t> below = rank_below(each.process);
        each.wrapped = below.empty() ? 0 : below.front();
      }
      if (is_exiting(each)) {
        process_ended(each, 0, each.killed_for.empty() ? "its process ended" : own_kill(each));
      }
    }
  }

  static std::string own_kill(const Slot& slot) {
    return format_text("its launcher killed it, because it {}", {slot.killed_for});
  }

  /// The formation forgets a worker whose process has ended, and the job may end with it: the slot keeps what the
  /// report needs.
  void process_ended(Slot& slot, int exit_code, const std::string& how) {
    const pid_t process = worker_of(slot);
    if (!std::exchange(slot.is_exiting, true)) slot.ends_with_job = is_ending();
    if (const rendezvous::Worker* worker = state_.workers().find(host_id_, process)) {
      slot.is_rank = worker->is_member();
    }
    if (slot.error.empty()) slot.error = state_.workers().error_of(host_id_, process);
    formation_.process_ended(host_id_, process, exit_code, how);
  }

  bool is_ending() const { return state_.is_over() || schedule_.has_acted() || services_.forwarder.interrupted(); }

  /// The process that is known to the formation.
  static pid_t worker_of(const Slot& slot) noexcept { return slot.wrapped != 0 ? slot.wrapped : slot.process; }

  static bool is_exiting(const Slot& slot) {
    const std::optional<detail::ProcessStatus> status = detail::status_of(worker_of(slot));
    return status ? (status->flags & exiting_flag) != 0 : slot.wrapped != 0;  // the wrapper has reaped it
  }

  void note(const Workers::Ended& ended) {
    Slot& slot = slots_[static_cast<std::size_t>(ended.rank)];
    const bool is_own_kill = !slot.killed_for.empty() && ended.status.signal == SIGKILL;
    const std::string how =
        is_own_kill ? own_kill(slot)
        : ended.status == ExitStatus{}
            ? "exit code 0 before the job had finished"
            : ended.status.text() + attempt_.memory_kills().explain(ended.status, schedule_.has_acted());
    process_ended(slot, ended.status.code, how);
    slot.process = slot.wrapped = 0;
    std::string line =
        format_text("worker {} was lost: {}{}{}", {ended.rank, how, slot.error.empty() ? "" : ": ", slot.error});
    if (slot.ends_with_job) {
      const bool counts = slot.is_rank && failed_after_end_ == 0;  // later ones do not matter
      failed_after_end_ = counts ? ended.status.exit_code() : failed_after_end_;
      if (is_own_kill) count_loss(std::move(line));
      return;
    }
    const int code = ended.status.exit_code();
    last_failure_ = std::max(code, 1);
    if (Deadline::Clock::now() - slot.started_at > long_life) slot.failures = 0;
    const char* const final_for = message_of(ended.status);
    const bool is_replaced = final_for == nullptr && left_to_replace_ > 0 && !is_ending();
    if (final_for != nullptr) {
      append_text(line, "; it is not replaced, because that exit code says that {}", {final_for});
    } else if (left_to_replace_ == 0 && !is_ending()) {
      line += most_restarts_ == 0 ? "; no other one starts without --max-restarts"
                                  : "; no other one starts, because --max-restarts is used up";
    }
    if (is_replaced) {
      --left_to_replace_;
      append_text(line, "; another one starts in its place{}", {plan_start(slot)});
    }
    services_.output.error().line("dtrain: ", line);
    count_loss(std::move(line));
  }

  void count_loss(std::string line) {
    ++lost_;
    list_loss(std::move(line));
  }
  void list_loss(std::string line) {
    if (losses_.size() < most_losses) {
      losses_.push_back(std::move(line));
    } else {
      ++unlisted_;
    }
  }

  /// Message of an exit code after which a worker is not replaced; null for others, and for signals.
  static const char* message_of(const ExitStatus& status) noexcept {
    switch (status.code) {
      case exit_code_usage: return "its command line or environment is wrong";
      case exit_code_job_failed: return "the job has failed";
      case 128 + SIGTERM: return "its machine goes away";
      default: return nullptr;
    }
  }

  /// 0, 1, 2, 4 ... 60 s from now. @returns " in 4 s"
  static std::string plan_start(Slot& slot) {
    const int delay = slot.failures == 0 ? 0 : std::min(1 << std::min(slot.failures - 1, 6), 60);
    ++slot.failures;
    slot.start_at = Deadline::Clock::now() + std::chrono::seconds(delay);
    return delay == 0 ? "" : format_text(" in {} s", {delay});
  }

  /// Kills workers for which the formation does not wait: a worker that was excluded long ago, if another can take its
  /// place and the job has its state elsewhere, and workers that are no ranks of an attempt that has finished the job.
  void kill_left_out(Deadline::Clock::time_point now) {
    if (state_.is_over() && !ended_at_) ended_at_ = now;
    for (std::size_t index = 0; index < slots_.size(); ++index) {
      Slot& slot = slots_[index];
      if (slot.process == 0 || slot.is_exiting || !slot.killed_for.empty() || state_.cause()) continue;
      const rendezvous::Worker* const worker = state_.workers().find(host_id_, worker_of(slot));
      if (ended_at_) {
        const bool is_rank = worker != nullptr && worker->is_member();
        if (!is_rank && now - *ended_at_ > end_timeout) {
          kill(index,
               format_text("was no rank at the end of the job, and had not ended {} later",
                           {duration_text(end_timeout)}),
               "");
        }
      } else if (worker != nullptr && worker->standing == rendezvous::Standing::excluded && left_to_replace_ > 0 &&
                 !attempt_.wraps(static_cast<int>(index)) &&  // its debugger may have stopped it
                 now - worker->since > excluded_timeout() && state_.workers().can_spare(*worker)) {
        const std::string time = duration_text(excluded_timeout());
        std::string why = worker->error.empty()
                              ? format_text("was silent for more than {}", {time})
                              : format_text("had failed more than {} before, and had not ended", {time});
        kill(index, std::move(why), ", so that another one takes its place");
      }
    }
  }

  std::chrono::milliseconds excluded_timeout() const {
    return std::min(formation_.options().rejoin_timeout, formation_.options().wait_timeout);
  }

  /// @param why a clause without subject @param aim is another one, or empty
  void kill(std::size_t index, std::string why, const char* aim) {
    Slot& slot = slots_[index];
    services_.output.error().line("dtrain: ", format_text("worker {} (process {}) {}, and is killed by its launcher{}",
                                                          {index, worker_of(slot), why, aim}));
    slot.killed_for = std::move(why);
    workers_.kill_group(slot.process);
  }

  void start_due(Deadline::Clock::time_point now) {
    for (std::size_t index = 0; index < slots_.size(); ++index) {
      Slot& slot = slots_[index];
      if (slot.start_at && (state_.is_over() || services_.forwarder.interrupted())) {
        slot.start_at.reset();
      } else if (slot.start_at && *slot.start_at <= now) {
        slot.start_at.reset();
        start(slot, static_cast<int>(index));
      }
    }
  }

  /// A start that fails, for lack of processes or descriptors, is repeated, or given up: the other workers go on.
  void start(Slot& slot, int index) {
    try {
      slot.process = attempt_.start_worker(index);
      slot.is_exiting = slot.is_rank = false;
      slot.error.clear();
      slot.killed_for.clear();
      slot.started_at = Deadline::Clock::now();
    } catch (const std::exception& error) {
      if (state_.attempt() == 0 || (left_to_replace_ == 0 && workers_.running() == 0 && !next_start())) throw;
      std::string line = format_text("starting worker {} failed: {}; ", {index, error.what()});
      if (left_to_replace_ > 0) {
        --left_to_replace_;
        append_text(line, "this is tried again{}", {plan_start(slot)});
      } else {
        line += "its place stays empty";
      }
      services_.output.error().line("dtrain: ", line);
      if (!slot.start_at) list_loss(std::move(line));
    }
  }

  std::optional<Deadline::Clock::time_point> next_start() const {
    std::optional<Deadline::Clock::time_point> first;
    for (const Slot& each : slots_) {
      first = each.start_at ? std::min(first.value_or(*each.start_at), *each.start_at) : first;
    }
    return first;
  }

  /// On several hosts, workers of any other host may come at any time.
  void tell_formation() {
    const auto here = static_cast<int>(std::count_if(
        slots_.begin(), slots_.end(), [](const Slot& each) { return each.process != 0 || each.start_at; }));
    const int running = is_on_hosts_ ? std::numeric_limits<int>::max() : here;
    Deadline::Clock::time_point last_start{};
    for (const Slot& each : slots_) {
      last_start = std::max(last_start, each.start_at.value_or(each.started_at));
    }
    const bool has_started = std::exchange(last_start_, last_start) != last_start;
    if (std::exchange(running_, running) != running || has_started) formation_.set_running_workers(running, last_start);
  }

  Attempt& attempt_;
  Workers& workers_;
  const AttemptServices& services_;
  const std::string host_id_;
  const bool is_on_hosts_;
  const bool hosts_store_;
  Formation& formation_;
  decltype(std::declval<Formation&>().state()) state_;  ///< a reference
  const int most_restarts_;
  int left_to_replace_;
  ShutdownSchedule schedule_;
  std::vector<Slot> slots_;
  std::vector<std::string> losses_;  ///< the first ones
  std::size_t lost_ = 0;
  std::size_t unlisted_ = 0;
  int stops_noted_ = 0;
  int running_ = -1;
  Deadline::Clock::time_point last_start_{};             ///< time of a worker's start, often in the future
  std::optional<Deadline::Clock::time_point> ended_at_;  ///< the job
  int last_failure_ = 0;
  int failed_after_end_ = 0;
};

/// The launcher, as a FormationServer calls it.
struct FormationListener : AttemptLog {
  explicit FormationListener(async::AutoResetEvent& event) : changed(event) {}
  void on_end() const { changed.set(); }

  async::AutoResetEvent& changed;
};

/// Ends a job whose store has not answered for DTRAIN_TIMEOUT_SECONDS and 10 s, unless a worker of this node has
/// reported the job's end. Workers that run have ended by themselves by then. A node of which all workers hang has no
/// other sign of the job's end. Lifetime: the arguments outlive it.
template <class = void>
async::Task<void> watch_store(async::EventLoop& loop, const NodePlan& plan, const NodeLauncherOptions& options,
                              RemoteFormation& formation) {
  const auto port = static_cast<std::uint16_t>(plan.master_port);
  const auto longest = in_milliseconds(options.join_timeout) + std::chrono::seconds(10);
  for (Deadline latest = Deadline::after(longest); !formation.is_over();) {
    co_await loop.sleep_for(std::chrono::seconds(5));
    async::Task<Listening> asking = listening_at(loop, plan.master_addr, port, options.secret.has_value());
    if (co_await std::move(asking) != Listening::none) {
      latest = Deadline::after(longest);
    } else if (latest.passed() && !formation.is_over()) {
      formation.lose_store(
          format_text("the store at {}:{} has not answered for {} s; node 0 says how the job has ended",
                      {plan.master_addr, port, longest.count() / 1000}));
    }
  }
}

template <class>
async::Task<JobResult> run_elastic_job(Attempt& attempt, const NodeLauncherOptions& options) {
  const rendezvous::HostIdentity host = rendezvous::host_identity(options.host_id);
  const AttemptServices& services = attempt.services();
  if (options.node.node_rank != 0) {
    RemoteFormation formation;
    attempt.report_ends_to(formation.report_writer());
    ElasticSupervisor supervisor(attempt, options, host.id, formation);
    const async::TaskHandle asking =
        services.loop.spawn(watch_store(services.loop, attempt.plan(), options, formation));
    async::Task<void> watching = supervisor.watch();
    co_await std::move(watching);
    co_return supervisor.result();
  }
  ElasticJobFacts job{attempt.plan().min_ranks, attempt.plan().world_size, options.join_timeout, options.liveness,
                      options.job};
  job.owner = format_text("the launcher on host {}", {host.name});
  job.further_files = files_for_workers(attempt.plan().workers);
  job.loss_grace = std::chrono::milliseconds(500);
  job.sees_processes = !options.is_elastic_on_hosts();
  const auto owned =
      formation_at(services.loop, services.coordinator.store(), job, FormationListener(services.changed));
  auto& formation = *owned;
  ElasticSupervisor supervisor(attempt, options, host.id, formation);
  async::Task<void> watching = supervisor.watch();
  co_await std::move(watching);
  JobResult result = supervisor.result();  // a signal that comes later does not change how the job has ended
  if (options.is_elastic_on_hosts()) {
    const auto is_stopped = [&services, before = services.forwarder.stop_requests()] {
      return services.forwarder.stop_requests() != before;
    };
    async::Task<void> draining = formation.drain(is_stopped);
    co_await std::move(draining);
  }
  co_return std::move(result);
}

#if DTRAIN_SEPARATE_COMPILATION
template async::Task<JobResult> run_elastic_job<>(Attempt& attempt, const NodeLauncherOptions& options);
#endif

}  // namespace DTRAIN_NAMESPACE::launch
