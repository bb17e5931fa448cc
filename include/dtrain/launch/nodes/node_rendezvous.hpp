#pragma once
/// @file
/// Rendezvous of the launchers of all nodes, from joining to leaving, and the sentences about a launcher that is lost
/// or does not join. JobCoordinator owns it.

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
#include "dtrain/core/cause.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/configuration/node_launcher_options.hpp"
#include "dtrain/launch/nodes/launcher_records.hpp"
#include "dtrain/net/socket_address.hpp"
#include "dtrain/rendezvous/client/store.hpp"
#include "dtrain/rendezvous/client/store_client.hpp"
#include "dtrain/rendezvous/membership/host_identity.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"
#include "dtrain/rendezvous/server/listen.hpp"
#include "dtrain/rendezvous/server/store_server.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// @param cause the first cause of the launchers' job, in which node ranks are the ranks
/// @param store the address where node 0's launcher listens
inline std::string lost_launcher_message(const Cause& cause, const std::string& store) {
  if (cause.rank < 0) {
    return cause.kind == CauseKind::lost
               ? format_text("node 0's launcher at {} was lost, and with it the job: {}", {store, cause.text})
               : format_text("the launchers of this job did not all join: {}", {cause.text});
  }
  return format_text("the launcher of node {}{}{} {}: {}",
                     {cause.rank, cause.host.empty() ? "" : " on host ", cause.host,
                      cause.kind == CauseKind::lost ? "was lost, and with it the job" : "ended the job", cause.text});
}

/// "nodes 1 and 2": rank_list for nodes.
inline std::string node_list(const std::vector<int>& nodes) {
  std::string text = rendezvous::rank_list(nodes);
  return text.rfind("no rank", 0) == 0 ? "no node" : format_text("node{}", {text.substr(4)});
}

/// @param missing the nodes whose launchers have not joined
/// @param timeout how long the others waited: "600.0 s"
/// @param listens_at where the store of node 0 listens
inline std::string missing_nodes(const std::vector<int>& missing, int node_count, const std::string& timeout,
                                 const std::string& store, const std::string& listens_at) {
  return format_text(
      "{} of {} did not join within {}; start this program there too, with its --node-rank, the same --nnodes and the "
      "same DTRAIN_SECRET, and see whether it can reach node 0 at {}: {}",
      {node_list(missing), node_count, timeout, store, listens_at});
}

/// Node 0 opens the store; every launcher joins it with ClientRole::launcher. The only launcher of a job joins nothing:
/// its store listens at the loopback address, and admits clients that know a secret drawn for this job.
/// Lifetime: the constructor's arguments outlive it. Threads: the loop's.
class NodeRendezvous {
 public:
  /// @param changed set when the launchers' job fails, for example when another launcher is lost
  NodeRendezvous(async::EventLoop& loop, async::AutoResetEvent& changed, const NodeLauncherOptions& options,
                 const rendezvous::HostIdentity& host)
      : loop_(&loop),
        options_(&options),
        host_(&host),
        master_addr_(options.node.master_addr),
        master_port_(static_cast<std::uint16_t>(options.node.master_port.value_or(0))),
        failure_(std::make_shared<FailureLatch>()) {
    subscription_ = failure_->subscribe([&changed](const Cause&) { changed.set(); });
  }
  NodeRendezvous(const NodeRendezvous&) = delete;
  NodeRendezvous& operator=(const NodeRendezvous&) = delete;

  /// Ends when all launchers have joined and know the ranks that they start.
  /// @throws JobFailed with a sentence that names the nodes that did not join; Error (usage) for nodes that cannot form
  /// a job; Error (posix) for a port in use; errors of rendezvous::listen_for_ranks and StoreClient::join
  async::Task<void> join() {
    if (options_->node.node_count == 1) {
      open_local_store();
      co_return;
    }
    if (options_->node.node_rank != 0 && net::is_any_host(master_addr_)) {
      throw_error(Errc::usage,
                  "node {} cannot connect to node 0 at {}, which means every interface of a host; give "
                  "--master-addr=HOST, the host of node 0",
                  {options_->node.node_rank, master_addr_});
    }
    const Deadline deadline = Deadline::after(options_->join_timeout);
    rendezvous::StoreAddress address;
    address.host = master_addr_;
    address.port = master_port_;
    address.role = rendezvous::ClientRole::launcher;
    address.secret = options_->secret;
    if (options_->node.node_rank == 0) {
      const rendezvous::ListenOptions rules{options_->interface, options_->secret.has_value(), true};
      std::vector<net::Listener> listeners =
          co_await rendezvous::listen_for_ranks(*loop_, master_addr_, master_port_, deadline, rules);
      const net::SocketAddress bound = listeners.front().local();
      address.host = bound.is_any() ? "localhost" : bound.host();
      listens_at_ = rendezvous::listens_at("its launcher", listeners, master_addr_);
      open_store(std::move(listeners), deadline);
    }
    rendezvous::Join request;
    request.info.rank = options_->node.node_rank;
    request.info.host_id = host_->id;
    request.info.host = host_->name;
    request.world_size = options_->node.node_count;
    request.job = options_->job;
    session_ = co_await rendezvous::StoreClient::join(*loop_, address, std::move(request), failure_, deadline);
    missing_nodes_task_.cancel();
    store_.emplace(session_->weak_from_this(), nullptr);
    co_await exchange_node_info();
  }

  /// Whether this launcher has joined others.
  bool has_joined() const noexcept { return store_.has_value(); }

  /// The ranks of each node. @pre join() has ended
  const NodeTable& table() const noexcept { return table_; }

  /// The store. @pre this is node 0
  rendezvous::StoreServer& server() noexcept { return *server_; }

  /// Whether the launchers' job has failed, for example because a launcher was lost.
  bool is_over() const noexcept { return failure_->failed(); }

  /// The first cause, if is_over().
  std::optional<Cause> cause() const { return failure_->cause(); }

  /// @name Keys of the launchers' job. If a launcher is lost, these functions throw.
  /// @{
  async::Task<void> set(std::string key, std::string value) {
    return store_->set(std::move(key), std::move(value), response_deadline());
  }
  /// Does nothing if the key exists.
  async::Task<void> set_first(std::string key, std::string value) {
    const rendezvous::CompareSet result =
        co_await store_->compare_set(std::move(key), std::nullopt, std::move(value), response_deadline());
    static_cast<void>(result);
  }
  /// Waits until the key exists, as long as all launchers are alive.
  async::Task<std::string> get(std::string key) {
    return store_->get(std::move(key), Deadline::unbounded("the loss of a launcher ends the session"));
  }
  /// @}

  /// Reports to the other launchers why this one failed, unless the table's problem, which all know, is the reason.
  async::Task<void> report_failure(std::string reason) {
    if (session_ != nullptr && !is_over() && table_.problem.empty()) {
      const Cause cause{CauseKind::exception, options_->node.node_rank, host_->name, std::move(reason)};
      session_->report(cause);
      const Deadline deadline = Deadline::after(failure_timeout);
      while (!is_over() && !deadline.passed()) {
        co_await loop_->sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  /// Leaves the job. Node 0's store stays open until all launchers have left, at most 5 s, or 1 s after a failure.
  async::Task<void> leave() {
    const bool well = !is_over();
    if (session_ != nullptr && well) {
      co_await session_->leave(Deadline::after(leave_timeout));
    }
    session_.reset();
    if (launchers_ != nullptr) {
      co_await launchers_->all_left(Deadline::after(well ? leave_timeout : failure_timeout));
    }
    launchers_ = nullptr;
    server_.reset();
  }

  /// @name The store's address. @pre join() has ended
  /// @{
  const std::string& master_addr() const noexcept { return master_addr_; }
  int master_port() const noexcept { return master_port_; }
  std::string store_text() const { return format_text("{}:{}", {master_addr_, master_port_}); }  ///< "host:29500"
  /// @}

  /// The secret that the only launcher of a job has drawn; else empty.
  const std::string& drawn_secret() const noexcept { return drawn_secret_; }

 private:
  static constexpr std::chrono::seconds leave_timeout{5};
  static constexpr std::chrono::seconds failure_timeout{1};

  static Deadline response_deadline() { return Deadline::after(std::chrono::seconds(60)); }

  void open_local_store() {
    net::Listener listener = net::Listener::bind_loopback(*loop_, master_port_);
    const rendezvous::Secret secret = rendezvous::Secret::drawn();
    drawn_secret_ = secret.text();
    master_addr_ = listener.local().host();
    master_port_ = listener.port();
    table_.workers = {options_->workers};
    server_.emplace(*loop_, std::move(listener), rendezvous::ServerOptions{secret, limits()});
  }

  rendezvous::Limits limits() const {
    rendezvous::Limits limits;
    limits.liveness = in_milliseconds(options_->liveness);
    return limits;
  }

  void open_store(std::vector<net::Listener> listeners, Deadline deadline) {
    server_.emplace(*loop_, std::move(listeners), rendezvous::ServerOptions{options_->secret, limits()});
    rendezvous::StoreJobOptions job;
    job.role = rendezvous::ClientRole::launcher;
    job.world_size = options_->node.node_count;
    job.job = options_->job;
    job.owner = format_text("the launcher of node 0 on host {}", {host_->name});
    job.join_deadline = deadline;
    job.on_joined = [this](int node, const std::string&) { joined_.insert(node); };
    job.on_failure = [this](const Cause& cause) {
      if (!has_joined()) {  // it is joining, which cannot succeed any more
        failure_->set(cause);
      }
    };
    launchers_ = &server_->open(std::move(job));
    missing_nodes_task_ = loop_->spawn(watch_missing_nodes(deadline));
  }

  /// Fails the job shortly before the store would, so that the sentence names nodes and not ranks.
  async::Task<void> watch_missing_nodes(Deadline deadline) {
    const Deadline::Clock::duration all = deadline.remaining();
    const Deadline::Clock::duration before = 2 * std::min<Deadline::Clock::duration>(all / 10, std::chrono::seconds(1));
    co_await loop_->sleep_for(all - before);
    std::vector<int> missing;
    for (int node = 0; node < options_->node.node_count; ++node) {
      if (joined_.count(node) == 0) {
        missing.push_back(node);
      }
    }
    if (!missing.empty()) {
      launchers_->post_failure(Cause{CauseKind::timeout,
                                     -1,
                                     {},
                                     missing_nodes(missing, options_->node.node_count,
                                                   duration_text(options_->join_timeout), store_text(), listens_at_)});
    }
  }

  async::Task<void> exchange_node_info() {
    NodeInfo info;
    info.workers = options_->workers;
    info.host = host_->name;
    info.host_id = host_->id;
    const std::string own = to_bytes(info);
    co_await set(LauncherKeys::node_info(options_->node.node_rank), own);
    if (options_->node.node_rank == 0) {
      std::vector<NodeInfo> node_infos;
      for (int node = 0; node < options_->node.node_count; ++node) {
        const std::string value = co_await get(LauncherKeys::node_info(node));
        node_infos.push_back(from_bytes<NodeInfo>(value, launcher_value));
      }
      const std::string table = to_bytes(table_of(node_infos));
      co_await set(LauncherKeys::table(), table);
    }
    const std::string value = co_await get(LauncherKeys::table());
    table_ = from_bytes<NodeTable>(value, launcher_value);
    if (!table_.problem.empty()) {
      throw_error(Errc::usage, "{}", {table_.problem});
    }
  }

  async::EventLoop* loop_;
  const NodeLauncherOptions* options_;
  const rendezvous::HostIdentity* host_;
  std::string master_addr_;
  std::uint16_t master_port_;
  std::string drawn_secret_;
  std::string listens_at_;  ///< for the error of a join timeout, on node 0
  std::shared_ptr<FailureLatch> failure_;
  FailureLatch::Subscription subscription_;
  std::optional<rendezvous::StoreServer> server_;  ///< on node 0 only
  rendezvous::JobServer* launchers_ = nullptr;     ///< the server's
  std::set<int> joined_;
  rendezvous::StoreClient::Owner session_;
  std::optional<rendezvous::Store> store_;
  NodeTable table_;
  async::TaskHandle missing_nodes_task_;
};

}  // namespace DTRAIN_NAMESPACE::launch
