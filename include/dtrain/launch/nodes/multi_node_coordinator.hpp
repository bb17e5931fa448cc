#pragma once
/// @file
/// Coordinator of the launchers of several nodes, which exchange keys in their own job in node 0's store.

#include <chrono>
#include <csignal>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/auto_reset_event.hpp"
#include "dtrain/core/process/exit_codes.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/launch/nodes/job_coordinator.hpp"
#include "dtrain/launch/nodes/launcher_keys.hpp"
#include "dtrain/launch/nodes/node_rendezvous.hpp"
#include "dtrain/launch/nodes/rank_store.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Node 0 opens the attempts, publishes the state of the ranks' store (first cause, other nodes' ranks that left, all
/// joined), and decides the result. Each launcher reports its own workers. Lifetime: the loop and the event outlive it.
/// Threads: the loop's.
class MultiNodeCoordinator final : public JobCoordinator {
 public:
  /// @param on_remote_stop called when the launcher of another node received its `count`-th signal to end the job
  MultiNodeCoordinator(async::EventLoop& loop, async::AutoResetEvent& changed, NodeRendezvousOptions options,
                       RestartPolicy policy, std::function<void(int signal, int count)> on_remote_stop)
      : loop_(&loop),
        changed_(&changed),
        policy_(policy),
        on_remote_stop_(std::move(on_remote_stop)),
        node_rendezvous_(loop, changed, std::move(options)) {}

  async::Task<RankAssignment> assign_ranks() override {
    co_await node_rendezvous_.join();
    const NodeRendezvousOptions& own = node_rendezvous_.options();
    const NodeTable& table = node_rendezvous_.table();
    if (is_first()) {
      RankStoreOptions store;
      store.world_size = table.world_size();
      store.owner = "the launcher of node 0 on host " + own.host.name;
      store.join_timeout = own.join_timeout;
      store.further_files = files_for_workers(own.workers);
      store.on_failure = [this](const Cause& cause) { publish(keys().cause(), to_value(CauseRecord{cause})); };
      store.on_left = [this](int rank) {
        if (rank >= node_rendezvous_.table().workers.front()) {
          publish(keys().left(rank), "yes");
        }
      };
      store.on_complete = [this] { publish(keys().complete(), "yes"); };
      ranks_.emplace(node_rendezvous_.server(), std::move(store));
    }
    watching_stops_ = loop_->spawn(watch_stops(), ignored());
    RankAssignment assignment;
    assignment.node_rank = own.node_rank;
    assignment.node_count = own.node_count;
    assignment.first_rank = table.first_rank(own.node_rank);
    assignment.world_size = table.world_size();
    assignment.master_addr = own.master_addr;
    assignment.master_port = own.master_port;
    if (is_first()) {
      assignment.description = to_string(table) + ", store at " + node_rendezvous_.store_text();
    }
    co_return std::move(assignment);
  }

  async::Task<void> begin(int attempt) override {
    attempt_ = attempt;
    cause_.reset();
    first_report_.reset();
    is_complete_ = false;
    left_.clear();
    leaving_.clear();
    if (is_first()) {
      ranks_->open(attempt);
      co_await node_rendezvous_.set(keys().start(), "start");
    } else {
      co_await node_rendezvous_.get(keys().start());
      watching_cause_ = loop_->spawn(watch_cause(keys().cause()), ignored());
      watching_joins_ = loop_->spawn(watch_complete(keys().complete()), ignored());
    }
    watching_failure_ = loop_->spawn(watch_failure(keys().failing()), ignored());
  }

  std::optional<Cause> first_cause() const override { return is_first() ? ranks_->cause() : cause_; }

  bool failing() const override { return first_report_.has_value() || first_cause() || node_rendezvous_.is_over(); }

  bool has_joined(int rank) const override { return is_first() ? ranks_->has_joined(rank) : is_complete_; }

  async::Task<bool> has_left(int rank) override {
    if (!is_first()) {
      leaving_.push_back(loop_->spawn(watch_left(rank, keys().left(rank)), ignored()));
    }
    const Deadline deadline = Deadline::after(leave_timeout);
    while (!knows_left(rank) && !is_lost(rank) && !node_rendezvous_.is_over() && !deadline.passed()) {
      co_await loop_->sleep_for(std::chrono::milliseconds(2));
    }
    co_return knows_left(rank);
  }

  void on_worker_failed(const Cause& loss, bool secondary) override {
    if (is_first() && !secondary) {
      ranks_->report_loss(loss);
    }
    if (!first_report_) {
      publish_first(keys().failing(), to_value(FailureRecord{CauseRecord{loss}, secondary}));
    }
  }

  void stop(int signal, int count) override {
    if (node_rendezvous_.has_joined()) {
      publish_first(keys().stop(count), std::to_string(signal));
    }
  }

  async::Task<JobResult> conclude(NodeEnd end) override {
    try {
      const std::string own = to_value(end);
      co_await node_rendezvous_.set(keys().end(end.node), own);
      if (is_first()) {
        const JobResult result = co_await decide_for_all_nodes();
        co_await node_rendezvous_.set(keys().job_result(), to_value(result));
        co_return result;
      }
      const std::string value = co_await node_rendezvous_.get(keys().job_result());
      co_return from_value<JobResult>(value);
    } catch (const Error&) {
      if (!node_rendezvous_.is_over()) {
        throw;
      }
    }
    JobResult lost;
    lost.exit_code = exit_code_job_failed;
    lost.report = {lost_launcher_message(*node_rendezvous_.cause(), node_rendezvous_.store_text())};
    co_return std::move(lost);
  }

  async::Task<void> leave() override {
    stop_watching();
    co_await node_rendezvous_.leave();
  }

  async::Task<void> abort(std::string reason) override {
    stop_watching();
    co_await node_rendezvous_.report_failure(std::move(reason));
    co_await node_rendezvous_.leave();
  }

 private:
  /// How long has_left() waits for the rank's leave after its process has ended.
  static constexpr std::chrono::milliseconds leave_timeout{500};

  /// Ignores errors of a task: it fails only with the launchers' job, which is_over() reports.
  static async::ExceptionHandler ignored() {
    return [](const std::exception_ptr&) {};
  }

  bool is_first() const noexcept { return node_rendezvous_.options().node_rank == 0; }
  LauncherKeys keys() const noexcept { return LauncherKeys(attempt_); }

  bool knows_left(int rank) const { return is_first() ? ranks_->has_left(rank) : left_.count(rank) != 0; }

  bool is_lost(int rank) const {
    const std::optional<Cause> cause = first_cause();
    return cause && cause->rank == rank;
  }

  async::Task<JobResult> decide_for_all_nodes() {
    std::vector<NodeEnd> nodes;
    for (int node = 0; node < node_rendezvous_.options().node_count; ++node) {
      const std::string value = co_await node_rendezvous_.get(keys().end(node));
      nodes.push_back(from_value<NodeEnd>(value));
    }
    const int first_reported = first_report_ ? first_report_->cause.cause.rank : -1;
    co_return decide_result(nodes, first_cause(), first_reported, policy_, attempt_);
  }

  void stop_watching() {
    watching_stops_.cancel();
    watching_cause_.cancel();
    watching_joins_.cancel();
    watching_failure_.cancel();
    leaving_.clear();
  }

  void publish(std::string key, std::string value) {
    loop_->spawn_detached(node_rendezvous_.set(std::move(key), std::move(value)), ignored());
    changed_->set();
  }

  /// The same, but keeps an existing value.
  void publish_first(std::string key, std::string value) {
    loop_->spawn_detached(node_rendezvous_.set_first(std::move(key), std::move(value)), ignored());
  }

  async::Task<void> watch_stops() {
    for (int count = 1;; ++count) {
      const std::string value = co_await node_rendezvous_.get(keys().stop(count));
      const int signal = identity::parse_integer(value).value_or(SIGTERM);
      const bool ends_jobs = signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
      on_remote_stop_(ends_jobs ? signal : SIGTERM, count);
    }
  }

  async::Task<void> watch_cause(std::string key) {
    const std::string value = co_await node_rendezvous_.get(std::move(key));
    cause_ = from_value<CauseRecord>(value).cause;
    changed_->set();
  }

  async::Task<void> watch_failure(std::string key) {
    const std::string value = co_await node_rendezvous_.get(std::move(key));
    first_report_ = from_value<FailureRecord>(value);
    if (is_first() && !first_report_->secondary) {
      ranks_->report_loss(first_report_->cause.cause);
    }
    changed_->set();
  }

  async::Task<void> watch_left(int rank, std::string key) {
    co_await node_rendezvous_.get(std::move(key));
    left_.insert(rank);
  }

  async::Task<void> watch_complete(std::string key) {
    co_await node_rendezvous_.get(std::move(key));
    is_complete_ = true;
  }

  async::EventLoop* loop_;
  async::AutoResetEvent* changed_;
  RestartPolicy policy_;
  std::function<void(int, int)> on_remote_stop_;
  NodeRendezvous node_rendezvous_;
  std::optional<RankStore> ranks_;  ///< on node 0 only
  int attempt_ = 0;
  std::optional<Cause> cause_;                 ///< as node 0 published it
  std::optional<FailureRecord> first_report_;  ///< the first report of any launcher
  bool is_complete_ = false;                   ///< all ranks have joined
  std::set<int> left_;
  std::vector<async::TaskHandle> leaving_;
  async::TaskHandle watching_stops_;  ///< the tasks come last: destroyed before the members that they use
  async::TaskHandle watching_cause_;
  async::TaskHandle watching_joins_;
  async::TaskHandle watching_failure_;
};

}  // namespace DTRAIN_NAMESPACE::launch
