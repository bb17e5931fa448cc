#pragma once
/// @file
/// The launchers of all nodes, from finding each other to parting.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/auto_reset_event.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/seconds_text.hpp"
#include "dtrain/launch/launcher_keys.hpp"
#include "dtrain/launch/launcher_loss.hpp"
#include "dtrain/launch/node_table.hpp"
#include "dtrain/launch/record.hpp"
#include "dtrain/rendezvous/host_identity.hpp"
#include "dtrain/rendezvous/listen.hpp"
#include "dtrain/rendezvous/server.hpp"
#include "dtrain/rendezvous/session.hpp"
#include "dtrain/rendezvous/store.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// What a launcher brings to the meeting of all nodes' launchers.
struct NodeMeetingOptions {
  int node_rank = 0;
  int node_count = 1;
  std::string master_addr;
  std::uint16_t master_port = 0;
  rendezvous::HostIdentity host;
  int workers = 1;                        ///< on this node
  std::chrono::nanoseconds formation{0};  ///< from the opening of the store until all have joined
  rendezvous::Limits limits{};
  std::optional<rendezvous::Secret> secret{};
  std::optional<std::string> interface {};  ///< where node 0 listens: a name or an address
  std::string job{};                        ///< its name; empty where it has none
};

/// Node 0 opens the store; every launcher joins it in the role of one. Lifetime: the loop and the event outlive it.
/// Threads: the loop's.
class NodeMeeting {
 public:
  /// @param changed is set when another launcher is lost
  NodeMeeting(async::EventLoop& loop, async::AutoResetEvent& changed, NodeMeetingOptions options)
      : loop_(&loop), options_(std::move(options)), failure_(std::make_shared<FailureLatch>()) {
    subscription_ = failure_->subscribe([&changed](const Cause&) { changed.set(); });
  }
  NodeMeeting(const NodeMeeting&) = delete;
  NodeMeeting& operator=(const NodeMeeting&) = delete;

  const NodeMeetingOptions& options() const noexcept { return options_; }

  /// Until all launchers have come and know where their ranks are.
  /// @throws JobFailed with a sentence that names the nodes that did not come; Error (usage) for nodes that cannot be
  /// one job; what listening and joining throw
  async::Task<void> meet() {
    const Deadline deadline = Deadline::after(options_.formation);
    rendezvous::Address address;
    address.host = options_.master_addr;
    address.port = options_.master_port;
    address.role = rendezvous::Role::launcher;
    address.secret = options_.secret;
    if (options_.node_rank == 0) {
      const rendezvous::ListenRules rules{options_.interface, options_.secret.has_value()};
      std::vector<net::Listener> listeners =
          co_await rendezvous::listen_for_ranks(*loop_, options_.master_addr, options_.master_port, deadline, rules);
      const net::Endpoint bound = listeners.front().local();
      address.host = bound.is_any() ? "localhost" : bound.host();
      open_store(std::move(listeners), deadline);
    }
    rendezvous::JoinRequest request;
    request.facts.rank = options_.node_rank;
    request.facts.host_id = options_.host.id;
    request.facts.host = options_.host.name;
    request.world_size = options_.node_count;
    request.job = options_.job;
    session_ = co_await rendezvous::Session::join(*loop_, address, std::move(request), failure_, deadline);
    missing_watch_.cancel();
    store_.emplace(session_->exchange(), nullptr);
    co_await find_places();
  }

  bool has_met() const noexcept { return store_.has_value(); }

  /// Which node has which ranks, once all have met.
  const NodeTable& table() const noexcept { return table_; }

  /// Node 0's store.
  rendezvous::Server& server() noexcept { return *server_; }

  /// Whether a launcher was lost.
  bool is_over() const noexcept { return failure_->failed(); }

  /// Why, once it is over.
  std::optional<Cause> cause() const { return failure_->cause(); }

  /// @name Keys of the launchers' job. They end with an exception when a launcher is lost.
  /// @{
  async::Task<void> set(std::string key, std::string value) {
    return store_->set(std::move(key), std::move(value), answer_deadline());
  }
  /// Does nothing where the key exists.
  async::Task<void> set_first(std::string key, std::string value) {
    const rendezvous::CompareSet result =
        co_await store_->compare_set(std::move(key), std::nullopt, std::move(value), answer_deadline());
    static_cast<void>(result);
  }
  /// Waits until it exists: as long as all launchers are alive.
  async::Task<std::string> get(std::string key) {
    return store_->get(std::move(key), Deadline::after(longer_than_any_job));
  }
  /// @}

  /// Tells the others why this launcher cannot go on, unless all have the same reason.
  async::Task<void> fail(std::string why) {
    if (session_ != nullptr && !is_over() && table_.problem.empty()) {
      const Cause cause{CauseKind::exception, options_.node_rank, options_.host.name, std::move(why)};
      session_->report(cause);
      const Deadline deadline = Deadline::after(moment);
      while (!is_over() && !deadline.passed()) {
        co_await loop_->sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  /// Says that this launcher is done; node 0's store stays until all have said so, or know why there is nothing more.
  async::Task<void> part() {
    const bool well = !is_over();
    if (session_ != nullptr && well) {
      co_await session_->leave(Deadline::after(farewell));
    }
    session_.reset();
    if (launchers_ != nullptr) {
      co_await launchers_->all_left(Deadline::after(well ? farewell : moment));
    }
    launchers_ = nullptr;
    server_.reset();
  }

  /// "host:29500"
  std::string store_text() const { return options_.master_addr + ":" + std::to_string(options_.master_port); }

 private:
  static constexpr std::chrono::hours longer_than_any_job{24 * 365};
  static constexpr std::chrono::seconds farewell{5};
  static constexpr std::chrono::seconds moment{1};

  static Deadline answer_deadline() { return Deadline::after(std::chrono::seconds(60)); }

  void open_store(std::vector<net::Listener> listeners, Deadline deadline) {
    server_.emplace(*loop_, std::move(listeners), rendezvous::ServerOptions{options_.secret, options_.limits});
    rendezvous::JobOptions job;
    job.role = rendezvous::Role::launcher;
    job.world_size = options_.node_count;
    job.job = options_.job;
    job.owner = "the launcher of node 0 on host " + options_.host.name;
    job.formation = deadline;
    job.on_joined = [this](int node, const std::string&) { present_.insert(node); };
    launchers_ = &server_->open(std::move(job));
    missing_watch_ = loop_->spawn(watch_missing(deadline));
  }

  /// Says in time, in words of nodes, what the store would say of ranks a moment later.
  async::Task<void> watch_missing(Deadline deadline) {
    const Deadline::Clock::duration all = deadline.remaining();
    const Deadline::Clock::duration before = 2 * std::min<Deadline::Clock::duration>(all / 10, std::chrono::seconds(1));
    co_await loop_->sleep_for(all - before);
    std::vector<int> missing;
    for (int node = 0; node < options_.node_count; ++node) {
      if (present_.count(node) == 0) {
        missing.push_back(node);
      }
    }
    if (!missing.empty()) {
      launchers_->post_failure(
          Cause{CauseKind::timeout,
                -1,
                {},
                missing_nodes(missing, options_.node_count, seconds_text(options_.formation), store_text())});
    }
  }

  async::Task<void> find_places() {
    NodeCard card;
    card.workers = options_.workers;
    card.host = options_.host.name;
    card.host_id = options_.host.id;
    co_await set(LauncherKeys::card(options_.node_rank), to_value(card));
    if (options_.node_rank == 0) {
      std::vector<NodeCard> cards;
      for (int node = 0; node < options_.node_count; ++node) {
        const std::string value = co_await get(LauncherKeys::card(node));
        cards.push_back(from_value<NodeCard>(value));
      }
      co_await set(LauncherKeys::table(), to_value(table_of(cards)));
    }
    const std::string value = co_await get(LauncherKeys::table());
    table_ = from_value<NodeTable>(value);
    if (!table_.problem.empty()) {
      throw Error(Errc::usage, table_.problem);
    }
  }

  async::EventLoop* loop_;
  NodeMeetingOptions options_;
  std::shared_ptr<FailureLatch> failure_;
  FailureLatch::Subscription subscription_;
  std::optional<rendezvous::Server> server_;    ///< node 0's
  rendezvous::ServedJob* launchers_ = nullptr;  ///< the server's
  std::set<int> present_;
  std::unique_ptr<rendezvous::Session> session_;
  std::optional<rendezvous::Store> store_;
  NodeTable table_;
  async::Spawned missing_watch_;
};

}  // namespace DTRAIN_NAMESPACE::launch
