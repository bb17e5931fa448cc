#pragma once
/// @file
/// Coordinator of a job's only launcher.

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/auto_reset_event.hpp"
#include "dtrain/launch/nodes/job_coordinator.hpp"
#include "dtrain/launch/nodes/rank_store.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Options of SingleNodeCoordinator.
struct SingleNodeOptions {
  int workers = 1;
  std::uint16_t port = 0;  ///< 0: the system chooses one
  std::string host;
  std::chrono::nanoseconds join_timeout{0};
  rendezvous::Limits limits{};
  RestartPolicy policy;
};

/// The store listens at the loopback address, and admits clients that know a secret generated for this job.
/// Lifetime: the loop and the event outlive it. Threads: the loop's.
class SingleNodeCoordinator final : public JobCoordinator {
 public:
  /// @throws Error (posix) for a port in use
  SingleNodeCoordinator(async::EventLoop& loop, async::AutoResetEvent& changed, SingleNodeOptions options)
      : loop_(&loop), changed_(&changed), options_(std::move(options)) {
    net::Listener listener = net::Listener::bind_loopback(loop, options_.port);
    const rendezvous::Secret secret = rendezvous::Secret::drawn();
    assignment_.secret = secret.text();
    assignment_.world_size = options_.workers;
    assignment_.master_addr = listener.local().host();
    assignment_.master_port = listener.port();
    RankStoreOptions store;
    store.world_size = options_.workers;
    store.owner = "the launcher on host " + options_.host;
    store.join_timeout = options_.join_timeout;
    store.further_files = files_for_workers(options_.workers);
    store.on_failure = [this](const Cause&) { changed_->set(); };
    server_.emplace(loop, std::move(listener), rendezvous::ServerOptions{secret, options_.limits});
    store_.emplace(*server_, std::move(store));
  }

  async::Task<RankAssignment> assign_ranks() override { co_return assignment_; }

  async::Task<void> begin(int attempt) override {
    attempt_ = attempt;
    failed_rank_ = -1;
    store_->open(attempt);
    co_return;
  }

  std::optional<Cause> first_cause() const override { return store_->cause(); }

  bool failing() const override { return first_cause().has_value(); }

  bool has_joined(int rank) const override { return store_->has_joined(rank); }

  /// A rank leaves before it exits, but the store may not have read that yet.
  async::Task<bool> has_left(int rank) override {
    const Deadline deadline = Deadline::after(leave_timeout);
    while (!store_->has_left(rank) && !is_lost(rank) && !deadline.passed()) {
      co_await loop_->sleep_for(std::chrono::milliseconds(5));
    }
    co_return store_->has_left(rank);
  }

  void on_worker_failed(const Cause& loss, bool secondary) override {
    failed_rank_ = failed_rank_ < 0 ? loss.rank : failed_rank_;
    if (!secondary) {
      store_->report_loss(loss);
    }
  }

  void stop(int, int) override {}

  async::Task<JobResult> conclude(NodeEnd end) override {
    const std::vector<NodeEnd> nodes{std::move(end)};
    co_return decide_result(nodes, first_cause(), failed_rank_, options_.policy, attempt_);
  }

  async::Task<void> leave() override {
    server_.reset();  // frees the port
    co_return;
  }

  async::Task<void> abort(std::string) override { return leave(); }

 private:
  static constexpr std::chrono::milliseconds leave_timeout{200};

  bool is_lost(int rank) const {
    const std::optional<Cause> cause = first_cause();
    return cause && cause->rank == rank;
  }

  async::EventLoop* loop_;
  async::AutoResetEvent* changed_;
  SingleNodeOptions options_;
  RankAssignment assignment_;
  int attempt_ = 0;
  int failed_rank_ = -1;
  std::optional<rendezvous::StoreServer> server_;
  std::optional<RankStore> store_;
};

}  // namespace DTRAIN_NAMESPACE::launch
