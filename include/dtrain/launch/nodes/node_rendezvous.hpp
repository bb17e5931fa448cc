#pragma once
/// @file
/// NodeRendezvous of a JobCoordinator: joining and leaving of all nodes' launchers. LauncherKeys, FailureRecord,
/// NodeTable: what they write to the store.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/async/events.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/configuration/node_launcher_options.hpp"
#include "dtrain/net/socket_address.hpp"
#include "dtrain/rendezvous/client/store.hpp"
#include "dtrain/rendezvous/client/store_client.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/membership/host_identity.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"
#include "dtrain/rendezvous/protocol/codec.hpp"
#include "dtrain/rendezvous/server/listen.hpp"
#include "dtrain/rendezvous/server/store_server.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Keys of an attempt begin with "attempt/" and its number. Stop requests concern the job, not an attempt.
class LauncherKeys {
 public:
  explicit LauncherKeys(int attempt) : attempt_(format_text("attempt/{}/", {attempt})) {}

  static std::string node_info(int node) { return "node/" + std::to_string(node); }        ///< NodeInfo
  static std::string table() { return "nodes"; }                                           ///< NodeTable
  static std::string stop(int count) { return "stop/" + std::to_string(count); }           ///< a signal
  std::string start() const { return attempt_ + "start"; }                                 ///< ranks can join
  std::string complete() const { return attempt_ + "complete"; }                           ///< all ranks have joined
  std::string cause() const { return attempt_ + "cause"; }                                 ///< FailureRecord
  std::string failing() const { return attempt_ + "failing"; }                             ///< FailureRecord
  std::string left(int rank) const { return format_text("{}left/{}", {attempt_, rank}); }  ///< it has left
  std::string end(int node) const { return format_text("{}end/{}", {attempt_, node}); }    ///< NodeEnd
  std::string job_result() const { return attempt_ + "job_result"; }                       ///< JobResult

 private:
  std::string attempt_;
};

/// The subject of the sentence about a value that cannot be read (see from_bytes).
inline constexpr std::string_view launcher_value = "what another launcher of this job wrote";

/// A failure, as a launcher reports it to the others.
struct FailureRecord {
  Cause cause;
  bool secondary = false;  ///< a worker's, caused by a failure that the ranks know already
};

inline void fields(Serializer& of, FailureRecord& record) {
  rendezvous::fields(of, record.cause);
  of.flag(record.secondary);
}

/// A launcher's information about its node.
struct NodeInfo {
  int workers = 1;
  std::string host;     ///< its name, for messages
  std::string host_id;  ///< see rendezvous/membership/host_identity.hpp
};

inline void fields(Serializer& of, NodeInfo& info) {
  of.number(info.workers);
  of.text(info.host, rendezvous::max_name_bytes);
  of.text(info.host_id, rendezvous::max_name_bytes);
}

/// The table that node 0 sends to all launchers.
struct NodeTable {
  std::vector<int> workers;  ///< workers of each node
  std::string problem;       ///< why these nodes cannot form a job; empty if they can

  int node_count() const noexcept { return static_cast<int>(workers.size()); }

  /// Number of ranks on nodes with a lower node rank.
  int first_rank(int node) const noexcept {
    return std::accumulate(workers.begin(), workers.begin() + std::min(node, node_count()), 0);
  }
  int world_size() const noexcept { return first_rank(node_count()); }
};

inline void fields(Serializer& of, NodeTable& table) {
  of.list(table.workers, 0, rendezvous::max_world_size, [&of](int& workers) { of.number(workers); });
  of.text(table.problem, rendezvous::max_sentence_bytes);
}

/// @param node_infos one for each node, in order
inline NodeTable table_of(const std::vector<NodeInfo>& node_infos) {
  NodeTable table;
  std::map<std::string, std::size_t> node_of_host;
  std::int64_t ranks = 0;
  for (std::size_t node = 0; node < node_infos.size(); ++node) {
    const NodeInfo& info = node_infos[node];
    table.workers.push_back(info.workers);
    ranks += info.workers;
    const auto [position, is_new] = node_of_host.emplace(info.host_id, node);
    if (!is_new && table.problem.empty()) {
      table.problem = format_text(
          "nodes {} and {} are one host, {}; start one launcher on each host (with more workers: --nproc-per-node), or "
          "set another DTRAIN_HOST_ID for each to let one host be several nodes",
          {position->second, node, info.host});
    }
    if (info.workers < 1 && table.problem.empty()) {
      table.problem = format_text("node {} has {} workers", {node, info.workers});
    }
  }
  if (ranks > rendezvous::max_world_size && table.problem.empty()) {
    table.problem =
        format_text("all nodes together have {} workers; at most {} are possible", {ranks, rendezvous::max_world_size});
  }
  return table;
}

/// "4 ranks on 2 nodes (3 on node 0, 1 on node 1)"; lists at most 8 nodes.
inline std::string to_string(const NodeTable& table) {
  constexpr std::size_t most = 8;
  std::string text = format_text("{} ranks on {} nodes (", {table.world_size(), table.node_count()});
  for (std::size_t node = 0; node < table.workers.size() && node < most; ++node) {
    append_text(text, "{}{} on node {}", {node == 0 ? "" : ", ", table.workers[node], node});
  }
  return text + (table.workers.size() > most ? ", ...)" : ")");
}

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
/// its store listens at the loopback address, and admits clients that know a secret drawn for this job. Nor do the
/// launchers of an elastic job on several hosts join: each knows its own node only.
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
      server_.emplace(*loop_, std::move(listeners), rendezvous::ServerOptions{options_->secret, limits()});
    }
    if (options_->is_elastic_on_hosts()) {
      table_.workers = {options_->workers};
      co_return;
    }
    if (options_->node.node_rank == 0) open_launchers_job(deadline);
    rendezvous::Join request;
    request.info.rank = options_->node.node_rank;
    request.info.host_id = host_->id;
    request.info.host = host_->name;
    request.world_size = options_->node.node_count;
    request.job = options_->job;
    session_ = co_await rendezvous::StoreClient::join(*loop_, address, std::move(request), failure_, deadline);
    store_ = with_call_purpose(rendezvous::Store(session_->weak_from_this(), nullptr),
                               "agreeing with the other nodes' launchers");
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
    return {.liveness = in_milliseconds(options_->liveness), .straggler_factor = options_->straggler_factor};
  }
  void open_launchers_job(Deadline deadline) {
    rendezvous::StoreJobOptions job;
    job.role = rendezvous::ClientRole::launcher;
    job.world_size = options_->node.node_count;
    job.job = options_->job;
    job.owner = format_text("the launcher of node 0 on host {}", {host_->name});
    job.join_deadline = deadline;
    job.missing_text = [this](const std::vector<int>& missing) {
      return missing_nodes(missing, options_->node.node_count, duration_text(options_->join_timeout), store_text(),
                           listens_at_);
    };
    job.on_failure = [this](const Cause& cause) {
      if (!has_joined()) {  // it is joining, which cannot succeed any more
        failure_->set(cause);
      }
    };
    launchers_ = &server_->open(std::move(job));
  }

  async::Task<void> exchange_node_info() {
    const std::string own = to_bytes(NodeInfo{options_->workers, host_->name, host_->id});
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
  std::string listens_at_;  ///< a clause in the error of a join timeout, on node 0
  std::shared_ptr<FailureLatch> failure_;
  FailureLatch::Subscription subscription_;
  std::optional<rendezvous::StoreServer> server_;  ///< the store, on node 0 only
  rendezvous::JobServer* launchers_ = nullptr;     ///< the server's
  rendezvous::StoreClient::Owner session_;
  std::optional<rendezvous::Store> store_;
  NodeTable table_;
};

}  // namespace DTRAIN_NAMESPACE::launch
