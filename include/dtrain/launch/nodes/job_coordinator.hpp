#pragma once
/// @file
/// JobCoordinator of a NodeLauncher: ranks, attempts, failures and result of a job, agreed between nodes' launchers.
/// RankRendezvous: the job that an attempt's ranks join.

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/events.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/launch/configuration/node_launcher_options.hpp"
#include "dtrain/launch/configuration/worker_program.hpp"
#include "dtrain/launch/nodes/job_result.hpp"
#include "dtrain/launch/nodes/node_rendezvous.hpp"
#include "dtrain/rendezvous/server/store_server.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Number of files that a launcher opens for its workers: two pipes for each, and pipes for the worker that starts.
inline std::size_t files_for_workers(int workers) noexcept {
  return 2 * static_cast<std::size_t>(workers) + 6;
}

/// Opens the ranks' job for each attempt, and closes the previous attempt's job, whose late ranks are rejected.
/// Lifetime: the server outlives it. Threads: the loop's.
class RankRendezvous {
 public:
  /// @param job the attempts' job; RankRendezvous sets attempt, deadline and on_joined
  /// @param join_timeout from open() until all ranks have joined
  /// @param on_complete all ranks of the attempt have joined
  RankRendezvous(
      rendezvous::StoreServer& server, rendezvous::StoreJobOptions job, std::chrono::nanoseconds join_timeout,
      std::function<void()> on_complete = [] {})
      : server_(&server), job_options_(std::move(job)), join_timeout_(join_timeout), on_complete_(on_complete) {}
  RankRendezvous(const RankRendezvous&) = delete;
  RankRendezvous& operator=(const RankRendezvous&) = delete;

  /// Ranks of this attempt can join from now on. @throws Error (limit) if the limit of open files is too low for them
  void open(int attempt) {
    rendezvous::StoreJobOptions job = job_options_;
    job.attempt = static_cast<std::uint64_t>(attempt);
    job.join_deadline = Deadline::after(join_timeout_);
    job.on_joined = [this](int, const std::string&) {
      if (job_ != nullptr && job_->state().rank_table().complete()) on_complete_();
    };
    job_ = &server_->open(std::move(job));
    if (cause()) {  // the attempt has failed already: start no worker
      throw_error(Errc::limit, "{}", {cause()->text});
    }
  }

  /// @name The current attempt. @pre open() was called
  /// @{
  bool has_joined(int rank) const { return job_->state().rank_table().find(rank) != nullptr; }
  bool has_left(int rank) const {
    const rendezvous::RankTable::RankEntry* const entry = job_->state().rank_table().find(rank);
    return entry != nullptr && entry->state == rendezvous::RankTable::RankState::left;
  }
  /// The first cause; nullopt before a failure.
  const std::optional<Cause>& cause() const noexcept { return job_->state().cause(); }
  /// As JobServer's; open() may not have been called.
  std::vector<std::string> take_status_table() {
    return job_ == nullptr ? std::vector<std::string>() : job_->take_status_table();
  }
  void on_stop() noexcept {
    if (job_ != nullptr) job_->on_stop();
  }
  /// The store is to end: no other member is called any more, but on_stop().
  void close() noexcept { job_ = nullptr; }
  /// Notifies the ranks of a failed worker, unless it had left.
  void report_loss(const Cause& loss) {
    if (!has_left(loss.rank)) job_->post_failure(loss);
  }
  /// @}
 private:
  rendezvous::StoreServer* server_;
  rendezvous::StoreJobOptions job_options_;
  std::chrono::nanoseconds join_timeout_;
  std::function<void()> on_complete_;
  rendezvous::JobServer* job_ = nullptr;  ///< owned by the server
};

/// Launchers of several nodes exchange keys in their own job in node 0's store. Node 0 opens the attempts, publishes
/// the state of the ranks' store (first cause, other nodes' ranks that left, all joined), and decides the result. Each
/// launcher reports its own workers. The only launcher of a job decides without an exchange, and so does each launcher
/// of an elastic job on several hosts. Errors: if another launcher is lost, assign_ranks() and begin() throw JobFailed,
/// and conclude() returns a result. Lifetime: the constructor's arguments outlive it. Threads: the loop's.
class JobCoordinator {
 public:
  /// @param changed set at every change
  /// @param on_remote_stop called when the launcher of another node received its `count`-th signal to end the job
  JobCoordinator(async::EventLoop& loop, async::AutoResetEvent& changed, const NodeLauncherOptions& options,
                 const rendezvous::HostIdentity& host, std::function<void(int signal, int count)> on_remote_stop)
      : loop_(&loop),
        changed_(&changed),
        options_(&options),
        host_(&host),
        on_remote_stop_(std::move(on_remote_stop)),
        node_rendezvous_(loop, changed, options, host) {}
  JobCoordinator(const JobCoordinator&) = delete;
  JobCoordinator& operator=(const JobCoordinator&) = delete;

  /// Joins the other launchers and agrees with them on ranks. @pre no other function was called
  /// @returns this node's part of the job. The secret is empty if the workers have one already
  async::Task<NodePlan> assign_ranks() {
    co_await node_rendezvous_.join();
    const NodeTable& table = node_rendezvous_.table();
    if (is_first()) {
      rendezvous::StoreJobOptions job;
      job.world_size = table.world_size();
      job.owner = format_text("the launcher{} on host {}", {is_alone() ? "" : " of node 0", host_->name});
      job.further_files = files_for_workers(options_->workers);
      job.loss_grace = std::chrono::milliseconds(500);
      job.prints_statuses = false;
      job.on_failure = [this](const Cause& cause) { publish(keys().cause(), to_bytes(FailureRecord{cause})); };
      job.on_left = [this](int rank) {
        if (rank >= node_rendezvous_.table().workers.front()) {
          publish(keys().left(rank), "yes");
        }
      };
      const auto on_complete = [this] { publish(keys().complete(), "yes"); };
      ranks_.emplace(node_rendezvous_.server(), std::move(job), options_->join_timeout, on_complete);
    }
    if (!is_alone()) {
      watching_stops_ = loop_->spawn(watch_stops(), ignored());
    }
    NodePlan plan;
    plan.workers = options_->workers;
    plan.first_rank = is_alone() ? 0 : table.first_rank(options_->node.node_rank);
    plan.world_size = table.world_size() * (is_alone() ? options_->node.node_count : 1);
    plan.node_rank = options_->node.node_rank;
    plan.node_count = options_->node.node_count;
    plan.master_addr = node_rendezvous_.master_addr();
    plan.master_port = node_rendezvous_.master_port();
    plan.secret = node_rendezvous_.drawn_secret();
    co_return std::move(plan);
  }

  /// For several nodes, on node 0: "4 ranks on 2 nodes (3 on node 0, ...". Else empty. @pre assign_ranks() has ended
  std::string description() const {
    if (options_->is_elastic_on_hosts() && is_first()) {
      return format_text("an elastic job on up to {} nodes, store at {}",
                         {options_->node.node_count, node_rendezvous_.store_text()});
    }
    return is_alone() || !is_first()
               ? ""
               : format_text("{}, store at {}", {to_string(node_rendezvous_.table()), node_rendezvous_.store_text()});
  }

  /// Begins an attempt: after it, ranks of this attempt can join. Attempts count from 0.
  async::Task<void> begin(int attempt) {
    attempt_ = attempt;
    cause_.reset();
    first_report_.reset();
    is_complete_ = false;
    left_.clear();
    watching_.clear();
    if (is_first()) {
      ranks_->open(attempt);
    }
    if (is_alone()) {
      co_return;
    }
    if (is_first()) {
      co_await node_rendezvous_.set(keys().start(), "start");
    } else {
      co_await node_rendezvous_.get(keys().start());
      watch(keys().cause(),
            [this](const std::string& value) { cause_ = from_bytes<FailureRecord>(value, launcher_value).cause; });
      watch(keys().complete(), [this](const std::string&) { is_complete_ = true; });
    }
    watch(keys().failing(), [this](const std::string& value) {
      first_report_ = from_bytes<FailureRecord>(value, launcher_value);
      if (is_first() && !first_report_->secondary) {
        ranks_->report_loss(first_report_->cause);
      }
    });
  }

  /// The store, for the formation of an elastic job. @pre assign_ranks() has ended, on node 0
  rendezvous::StoreServer& store() noexcept { return node_rendezvous_.server(); }

  /// The job's first cause in this attempt; nullopt before a failure.
  const std::optional<Cause>& first_cause() const { return is_first() ? ranks_->cause() : cause_; }

  /// Whether a worker on any node has failed or another launcher is lost, so that this node's workers must stop.
  bool failing() const { return first_report_.has_value() || first_cause() || node_rendezvous_.is_over(); }

  /// Whether a rank of this node is known to have joined. From then on the store detects that it is lost.
  bool has_joined(int rank) const { return is_first() ? ranks_->has_joined(rank) : is_complete_; }

  /// Whether a rank of this node had left the job before its process ended. A rank leaves before it exits, but the
  /// store may read the leave message later, and node 0's launcher may publish the departure later. Ends when the
  /// answer is known, at the latest when the store would have found the rank lost and node 0's launcher published that
  /// loss; earlier if the job ends.
  /// @pre the process has just ended
  async::Task<bool> has_left(int rank) {
    if (!is_first()) {
      watch(keys().left(rank), [this, rank](const std::string&) { left_.insert(rank); });
    }
    const Deadline soon = Deadline::after(std::chrono::milliseconds(is_alone() ? 200 : 500));
    const Deadline latest = is_first() ? soon : Deadline::after(options_->liveness + publish_timeout);
    while (!knows_left(rank) && !is_lost(rank) && !node_rendezvous_.is_over() &&
           !(failing() || is_stopping_ ? soon : latest).passed()) {
      co_await loop_->sleep_for(std::chrono::milliseconds(2));
    }
    co_return knows_left(rank);
  }

  /// A worker of this node has failed.
  /// @param secondary the cause is a failure that the ranks know already. If false, the coordinator notifies the ranks,
  /// unless the worker had left
  void on_worker_failed(const Cause& loss, bool secondary) {
    if (is_first() && !secondary) {
      ranks_->report_loss(loss);
    }
    if (!first_report_ && is_alone()) {
      first_report_ = FailureRecord{loss, secondary};
    } else if (!first_report_) {
      publish_first(keys().failing(), to_bytes(FailureRecord{loss, secondary}));
    }
  }

  /// This launcher received a signal, as its `count`-th stop request.
  void stop(int signal, int count) {
    is_stopping_ = true;
    if (ranks_) ranks_->on_stop();
    if (node_rendezvous_.has_joined()) {
      publish_first(keys().stop(count), std::to_string(signal));
    }
  }

  /// No worker of this node runs any more. Waits until that is so on every node. @returns the job's result
  async::Task<JobResult> conclude(NodeEnd end) {
    if (is_alone()) {
      co_return decide(std::vector<NodeEnd>{std::move(end)});
    }
    try {
      const std::string own = to_bytes(end);
      co_await node_rendezvous_.set(keys().end(end.node), own);
      if (is_first()) {
        std::vector<NodeEnd> nodes;
        for (int node = 0; node < options_->node.node_count; ++node) {
          const std::string value = co_await node_rendezvous_.get(keys().end(node));
          nodes.push_back(from_bytes<NodeEnd>(value, launcher_value));
        }
        const JobResult result = decide(nodes);
        const std::string bytes = to_bytes(result);
        co_await node_rendezvous_.set(keys().job_result(), bytes);
        co_return result;
      }
      const std::string value = co_await node_rendezvous_.get(keys().job_result());
      co_return from_bytes<JobResult>(value, launcher_value);
    } catch (const Error&) {
      if (!node_rendezvous_.is_over()) {
        throw;
      }
    }
    std::string lost = lost_launcher_message(*node_rendezvous_.cause(), node_rendezvous_.store_text());
    co_return JobResult{exit_code_job_failed, false, {std::move(lost)}};
  }

  /// On node 0, after a failure: what each rank of the attempt did, in lines.
  std::vector<std::string> take_status_table() {
    return ranks_ ? ranks_->take_status_table() : std::vector<std::string>();
  }

  /// This was the last attempt.
  async::Task<void> leave() {
    stop_watching();
    if (ranks_) ranks_->close();
    co_await node_rendezvous_.leave();
  }

  /// This launcher failed; notifies the other launchers of the reason. Call it instead of leave().
  async::Task<void> abort(std::string reason) {
    stop_watching();
    if (ranks_) ranks_->close();
    co_await node_rendezvous_.report_failure(std::move(reason));
    co_await node_rendezvous_.leave();
  }

 private:
  /// How long node 0's launcher may take to publish that the store has lost a rank.
  static constexpr std::chrono::seconds publish_timeout{5};

  /// Ignores errors of a task: it fails only with the launchers' job, which is_over() reports.
  static async::ExceptionHandler ignored() {
    return [](const std::exception_ptr&) {};
  }

  bool is_first() const noexcept { return options_->node.node_rank == 0; }
  bool is_alone() const noexcept { return options_->node.node_count == 1 || options_->is_elastic_on_hosts(); }
  LauncherKeys keys() const noexcept { return LauncherKeys(attempt_); }

  bool knows_left(int rank) const { return is_first() ? ranks_->has_left(rank) : left_.count(rank) != 0; }

  bool is_lost(int rank) const {
    const std::optional<Cause>& cause = first_cause();
    return cause && cause->rank == rank;
  }

  JobResult decide(const std::vector<NodeEnd>& nodes) const {
    const int first_reported = first_report_ ? first_report_->cause.rank : -1;
    return decide_result(nodes, first_cause(), first_reported, options_->max_restarts, attempt_);
  }

  void stop_watching() {
    watching_stops_.cancel();
    watching_.clear();
  }

  /// Sets a key for the other launchers, if there are any.
  void publish(std::string key, std::string value) {
    if (!is_alone()) {
      loop_->spawn_detached(node_rendezvous_.set(std::move(key), std::move(value)), ignored());
    }
    changed_->set();
  }

  /// publish(), but keeps an existing value.
  void publish_first(std::string key, std::string value) {
    loop_->spawn_detached(node_rendezvous_.set_first(std::move(key), std::move(value)), ignored());
  }

  async::Task<void> watch_stops() {
    for (int count = 1;; ++count) {
      const std::string value = co_await node_rendezvous_.get(keys().stop(count));
      is_stopping_ = true;
      if (ranks_) ranks_->on_stop();
      const int signal = identity::parse_integer(value).value_or(SIGTERM);
      const bool ends_jobs = signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
      on_remote_stop_(ends_jobs ? signal : SIGTERM, count);
    }
  }

  /// Calls the handler with the key's value when another launcher, or this one, has set the key in this attempt.
  void watch(std::string key, std::function<void(const std::string&)> handler) {
    watching_.push_back(loop_->spawn(wait_for(std::move(key), std::move(handler)), ignored()));
  }

  async::Task<void> wait_for(std::string key, std::function<void(const std::string&)> handler) {
    const std::string value = co_await node_rendezvous_.get(std::move(key));
    handler(value);
    changed_->set();
  }

  async::EventLoop* loop_;
  async::AutoResetEvent* changed_;
  const NodeLauncherOptions* options_;
  const rendezvous::HostIdentity* host_;
  std::function<void(int, int)> on_remote_stop_;
  NodeRendezvous node_rendezvous_;
  std::optional<RankRendezvous> ranks_;  ///< the ranks' jobs, on node 0 only
  int attempt_ = 0;
  std::optional<Cause> cause_;                 ///< the cause that node 0 published
  std::optional<FailureRecord> first_report_;  ///< the first report of any launcher
  bool is_complete_ = false;                   ///< all ranks have joined
  bool is_stopping_ = false;                   ///< a launcher of the job has received a stop request
  std::set<int> left_;
  async::TaskHandle watching_stops_;  ///< the tasks come last: destroyed before the members that they use
  std::vector<async::TaskHandle> watching_;
};

}  // namespace DTRAIN_NAMESPACE::launch
