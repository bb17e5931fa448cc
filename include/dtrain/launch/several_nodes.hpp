#pragma once
/// @file
/// The coordination of the launchers of several nodes, through keys of a job of their own in node 0's store.

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
#include "dtrain/core/exit_codes.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/launch/coordination.hpp"
#include "dtrain/launch/launcher_keys.hpp"
#include "dtrain/launch/node_meeting.hpp"
#include "dtrain/launch/rank_store.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Node 0 opens the attempts, tells what the ranks' job knows, and judges; every launcher tells of its own workers.
/// Lifetime: the loop and the event outlive it. Threads: the loop's.
class SeveralNodes final : public Coordination {
 public:
  /// @param stop_by is called when the launcher of another node was told to end the job, with the signal and how many
  /// of those it has had
  SeveralNodes(async::EventLoop& loop, async::AutoResetEvent& changed, NodeMeetingOptions options, RestartPolicy policy,
               std::function<void(int signal, int count)> stop_by)
      : loop_(&loop),
        changed_(&changed),
        policy_(policy),
        stop_by_(std::move(stop_by)),
        meeting_(loop, changed, std::move(options)) {}

  async::Task<Place> assemble() override {
    co_await meeting_.meet();
    const NodeMeetingOptions& own = meeting_.options();
    const NodeTable& table = meeting_.table();
    if (is_first()) {
      RankStoreOptions store;
      store.world_size = table.world_size();
      store.owner = "the launcher of node 0 on host " + own.host.name;
      store.formation = own.formation;
      store.further_files = files_for_workers(own.workers);
      store.on_failure = [this](const Cause& cause) { tell(keys().cause(), to_value(CauseRecord{cause})); };
      store.on_left = [this](int rank) {
        if (rank >= meeting_.table().workers.front()) {
          tell(keys().left(rank), "yes");
        }
      };
      store.on_complete = [this] { tell(keys().complete(), "yes"); };
      ranks_.emplace(meeting_.server(), std::move(store));
    }
    watching_stops_ = loop_->spawn(watch_stops(), ignored());
    Place place;
    place.node_rank = own.node_rank;
    place.node_count = own.node_count;
    place.first_rank = table.first_rank(own.node_rank);
    place.world_size = table.world_size();
    place.master_addr = own.master_addr;
    place.master_port = own.master_port;
    if (is_first()) {
      place.description = to_string(table) + ", store at " + meeting_.store_text();
    }
    co_return std::move(place);
  }

  async::Task<void> begin(int attempt) override {
    attempt_ = attempt;
    cause_.reset();
    told_.reset();
    is_complete_ = false;
    left_.clear();
    leaving_.clear();
    if (is_first()) {
      ranks_->open(attempt);
      co_await meeting_.set(keys().go(), "go");
    } else {
      co_await meeting_.get(keys().go());
      watching_cause_ = loop_->spawn(watch_cause(keys().cause()), ignored());
      watching_joins_ = loop_->spawn(learn_complete(keys().complete()), ignored());
    }
    watching_failure_ = loop_->spawn(watch_failure(keys().failing()), ignored());
  }

  std::optional<Cause> first_cause() const override { return is_first() ? ranks_->cause() : cause_; }

  bool failing() const override { return told_.has_value() || first_cause() || meeting_.is_over(); }

  bool has_joined(int rank) const override { return is_first() ? ranks_->has_joined(rank) : is_complete_; }

  async::Task<bool> has_left(int rank) override {
    if (!is_first()) {
      leaving_.push_back(loop_->spawn(learn_left(rank, keys().left(rank)), ignored()));
    }
    const Deadline deadline = Deadline::after(patience);
    while (!knows_left(rank) && !is_lost(rank) && !meeting_.is_over() && !deadline.passed()) {
      co_await loop_->sleep_for(std::chrono::milliseconds(2));
    }
    co_return knows_left(rank);
  }

  void failed(const Cause& loss, bool secondary) override {
    if (is_first() && !secondary) {
      ranks_->lose(loss);
    }
    if (!told_) {
      tell_first(keys().failing(), to_value(FailureRecord{CauseRecord{loss}, secondary}));
    }
  }

  void stop(int signal, int count) override {
    if (meeting_.has_met()) {
      tell_first(keys().stop(count), std::to_string(signal));
    }
  }

  async::Task<JobVerdict> conclude(NodeEnd end) override {
    try {
      const std::string own = to_value(end);
      co_await meeting_.set(keys().end(end.node), own);
      if (is_first()) {
        const JobVerdict verdict = co_await judge_all();
        co_await meeting_.set(keys().verdict(), to_value(verdict));
        co_return verdict;
      }
      const std::string value = co_await meeting_.get(keys().verdict());
      co_return from_value<JobVerdict>(value);
    } catch (const Error&) {
      if (!meeting_.is_over()) {
        throw;
      }
    }
    JobVerdict lost;
    lost.exit_code = exit_code_job_failed;
    lost.report = {launcher_loss(*meeting_.cause(), meeting_.store_text())};
    co_return std::move(lost);
  }

  async::Task<void> leave() override {
    stop_watching();
    co_await meeting_.part();
  }

  async::Task<void> give_up(std::string why) override {
    stop_watching();
    co_await meeting_.fail(std::move(why));
    co_await meeting_.part();
  }

 private:
  /// How long the news that a rank has left may take after its process has ended.
  static constexpr std::chrono::milliseconds patience{500};

  /// A task ends with the launchers' job; that is noticed elsewhere.
  static async::ExceptionHandler ignored() {
    return [](const std::exception_ptr&) {};
  }

  bool is_first() const noexcept { return meeting_.options().node_rank == 0; }
  LauncherKeys keys() const noexcept { return LauncherKeys(attempt_); }

  bool knows_left(int rank) const { return is_first() ? ranks_->has_left(rank) : left_.count(rank) != 0; }

  bool is_lost(int rank) const {
    const std::optional<Cause> cause = first_cause();
    return cause && cause->rank == rank;
  }

  async::Task<JobVerdict> judge_all() {
    std::vector<NodeEnd> nodes;
    for (int node = 0; node < meeting_.options().node_count; ++node) {
      const std::string value = co_await meeting_.get(keys().end(node));
      nodes.push_back(from_value<NodeEnd>(value));
    }
    const int told = told_ ? told_->cause.cause.rank : -1;
    co_return judge(nodes, first_cause(), told, policy_, attempt_);
  }

  void stop_watching() {
    watching_stops_.cancel();
    watching_cause_.cancel();
    watching_joins_.cancel();
    watching_failure_.cancel();
    leaving_.clear();
  }

  void tell(std::string key, std::string value) {
    loop_->spawn_detached(meeting_.set(std::move(key), std::move(value)), ignored());
    changed_->set();
  }

  /// The same, where the first one counts.
  void tell_first(std::string key, std::string value) {
    loop_->spawn_detached(meeting_.set_first(std::move(key), std::move(value)), ignored());
  }

  async::Task<void> watch_stops() {
    for (int count = 1;; ++count) {
      const std::string told = co_await meeting_.get(keys().stop(count));
      const int signal = identity::parse_integer(told).value_or(SIGTERM);
      const bool ends_jobs = signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
      stop_by_(ends_jobs ? signal : SIGTERM, count);
    }
  }

  async::Task<void> watch_cause(std::string key) {
    const std::string value = co_await meeting_.get(std::move(key));
    cause_ = from_value<CauseRecord>(value).cause;
    changed_->set();
  }

  async::Task<void> watch_failure(std::string key) {
    const std::string value = co_await meeting_.get(std::move(key));
    told_ = from_value<FailureRecord>(value);
    if (is_first() && !told_->secondary) {
      ranks_->lose(told_->cause.cause);
    }
    changed_->set();
  }

  async::Task<void> learn_left(int rank, std::string key) {
    co_await meeting_.get(std::move(key));
    left_.insert(rank);
  }

  async::Task<void> learn_complete(std::string key) {
    co_await meeting_.get(std::move(key));
    is_complete_ = true;
  }

  async::EventLoop* loop_;
  async::AutoResetEvent* changed_;
  RestartPolicy policy_;
  std::function<void(int, int)> stop_by_;
  NodeMeeting meeting_;
  std::optional<RankStore> ranks_;  ///< node 0's
  int attempt_ = 0;
  std::optional<Cause> cause_;         ///< as node 0 told it
  std::optional<FailureRecord> told_;  ///< what a launcher told first
  bool is_complete_ = false;           ///< all ranks have joined
  std::set<int> left_;
  std::vector<async::Spawned> leaving_;
  async::Spawned watching_stops_;  ///< the tasks come last: they are gone before what they use
  async::Spawned watching_cause_;
  async::Spawned watching_joins_;
  async::Spawned watching_failure_;
};

}  // namespace DTRAIN_NAMESPACE::launch
