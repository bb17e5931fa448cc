#pragma once
/// @file
/// rendezvous::StoreServer: accepts connections, performs the handshake and passes each connection to its job.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/core/process/open_files.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/listener.hpp"
#include "dtrain/rendezvous/protocol/handshake_codec.hpp"
#include "dtrain/rendezvous/protocol/transcript.hpp"
#include "dtrain/rendezvous/server/job_server.hpp"
#include "dtrain/rendezvous/server/open_file_limit.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Serves at most one job of each role, from its construction to its destruction, which closes every connection at
/// once. Lifetime: the loop outlives it.
/// Threads: the one that runs the event loop, which is the control thread of the rank or launcher that hosts the store.
class StoreServer {
 public:
  /// @param listeners at least one
  StoreServer(async::EventLoop& loop, std::vector<net::Listener> listeners, ServerOptions options)
      : loop_(loop), listeners_(std::move(listeners)), options_(std::move(options)) {
    raise_open_files();
    options_.limits.pending_connections = pending_connection_limit(options_.limits.pending_connections);
    for (net::Listener& listener : listeners_) {
      accepting_.push_back(
          loop_.spawn(accept_all(listener), [this](const std::exception_ptr& reason) { fail_all_jobs(reason); }));
    }
  }
  StoreServer(async::EventLoop& loop, net::Listener listener, ServerOptions options)
      : StoreServer(loop, one(std::move(listener)), std::move(options)) {}
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  ~StoreServer() = default;

  /// The first address that it listens at.
  net::SocketAddress local() const noexcept { return listeners_.front().local(); }

  /// Opens a job, which replaces an earlier job of the same role. The earlier job's sessions are closed; its late ranks
  /// are refused with a sentence. If this process may not open enough files for the job, the job has failed from the
  /// beginning. Lifetime of the result: until the next job of its role, or the server's end. @throws as JobServer
  JobServer& open(StoreJobOptions options) {
    auto job = std::make_unique<JobServer>(loop_, std::move(options), options_.limits);
    std::unique_ptr<JobServer>& place = jobs_[job->options().role];
    place = std::move(job);
    if (const std::optional<Cause> cause = too_few_files(place->options())) {
      place->post_failure(*cause);
    }
    return *place;
  }

  /// Number of connections that have not joined: for tests and diagnosis.
  std::size_t pending_connections() const noexcept { return without_hello_.size() + with_hello_.size(); }

 private:
  /// A connection that has not joined.
  struct PendingConnection {
    std::unique_ptr<FramedConnection> connection;
    async::TaskHandle task;  ///< destroyed before the connection
  };
  using ConnectionId = std::uint64_t;
  using PendingConnections = std::map<ConnectionId, PendingConnection>;  ///< the oldest first

  struct ReceivedHandshake {
    Hello hello;
    HandshakeRequest request;
    Transcript transcript;
  };

  static std::vector<net::Listener> one(net::Listener listener) {
    std::vector<net::Listener> listeners;
    listeners.push_back(std::move(listener));
    return listeners;
  }

  async::Task<void> accept_all(net::Listener& listener) {
    for (std::size_t accepted_at_once = 1;; ++accepted_at_once) {
      std::optional<net::Connection> accepted =
          co_await listener.accept(Deadline::unbounded("clients may come as long as the store lives"));
      if (accepted) {
        add_pending(std::move(*accepted));
      }
      if (accepted_at_once >= max_pending_connections() / 8) {  // serve them before many new ones replace them
        co_await loop_.sleep_for(std::chrono::milliseconds(0));
        accepted_at_once = 0;
      }
    }
  }

  /// The bound, and one more for each rank that has not joined: all ranks of a large job may connect at once.
  std::size_t max_pending_connections() const noexcept {
    std::size_t most = options_.limits.pending_connections;
    for (const auto& [role, job] : jobs_) {
      const auto ranks = static_cast<std::size_t>(job->options().world_size);
      most += ranks - std::min(ranks, job->sessions());
    }
    return most;
  }

  void add_pending(net::Connection connection) {
    if (pending_connections() >= max_pending_connections()) {
      PendingConnections& pending_connections = pool_to_shrink();
      pending_connections.erase(pending_connections.begin());
    }
    const ConnectionId id = ++last_id_;
    try {
      PendingConnection& pending = without_hello_[id];
      pending.connection = std::make_unique<FramedConnection>(std::move(connection), max_handshake_bytes);
      pending.connection->watch(options_.limits.liveness);
      pending.task = loop_.spawn(receive(id, *pending.connection));
    } catch (const std::exception&) {  // the connection is gone, or memory is short: serve the others
      without_hello_.erase(id);
    }
  }

  /// The connections whose oldest is closed to make room. A rank's connection has a Hello until the store answers its
  /// Join, but any process can send a Hello. So connections with a Hello keep half of all places before the others, and
  /// no more. Neither a flood of connections nor one of Hellos evicts a rank before half of all places were reused.
  PendingConnections& pool_to_shrink() noexcept {
    return with_hello_.size() > max_pending_connections() / 2 || without_hello_.empty() ? with_hello_ : without_hello_;
  }

  /// Serves one connection until its session takes it over or it ends. An error ends this connection only.
  async::Task<void> receive(ConnectionId id, FramedConnection& connection) {
    try {
      const Deadline deadline = Deadline::after(options_.limits.handshake);
      std::variant<std::monostate, Refused, ReceivedHandshake> received =
          co_await receive_handshake(id, connection, deadline);
      if (const Refused* refused = std::get_if<Refused>(&received)) {
        co_await reject(connection, encode(*refused));
      } else if (ReceivedHandshake* handshake = std::get_if<ReceivedHandshake>(&received)) {
        const std::optional<Frame> no = route_to_job(id, *handshake);
        if (no) {
          co_await reject(connection, *no);
        }
      }
    } catch (const std::exception&) {  // the connection broke, or there is no memory for it
    }
    if (without_hello_.erase(id) == 0) {
      with_hello_.erase(id);
    }
  }

  /// Performs Hello, Challenge, and Join or Resume. @returns monostate for malformed or late messages
  async::Task<std::variant<std::monostate, Refused, ReceivedHandshake>> receive_handshake(ConnectionId id,
                                                                                          FramedConnection& connection,
                                                                                          Deadline deadline) {
    ReceivedHandshake handshake;
    const net::FrameResult first = co_await connection.reader.read_frame(deadline);
    auto hello = first.ok() ? decode_hello(first.payload, version_text) : std::nullopt;
    if (!hello) {
      co_return std::monostate();
    }
    if (Refused* refused = std::get_if<Refused>(&*hello)) {
      co_return std::move(*refused);
    }
    handshake.hello = std::get<Hello>(std::move(*hello));
    if (auto refused = refusal_of_missing_secret(handshake.hello)) {
      co_return *std::move(refused);
    }
    with_hello_.insert(without_hello_.extract(id));
    handshake.transcript.add(first.payload);
    const Frame challenge = encode(Challenge{random_bytes<16>(), options_.secret.has_value()});
    handshake.transcript.add(challenge);
    const net::IoResult sent = co_await connection.writer.write_frame(challenge, deadline);
    if (!sent.ok()) {
      co_return std::monostate();
    }
    const net::FrameResult second = co_await connection.reader.read_frame(deadline);
    std::optional<HandshakeRequest> request = second.ok() ? decode<HandshakeRequest>(second.payload) : std::nullopt;
    if (!request) {
      co_return std::monostate();
    }
    if (options_.secret && !handshake.transcript.is_proved(ProofSide::rank, *options_.secret, second.payload)) {
      co_return Refused{
          "its secret is not the job's; give all of the job the same DTRAIN_SECRET or DTRAIN_SECRET_FILE"};
    }
    handshake.transcript.add(second.payload);
    handshake.request = *std::move(request);
    co_return std::move(handshake);
  }

  std::optional<Refused> refusal_of_missing_secret(const Hello& hello) const {
    if (options_.secret && !hello.has_secret) {
      return Refused{
          "the job has a secret and this process does not; give all of the job the same DTRAIN_SECRET or "
          "DTRAIN_SECRET_FILE"};
    }
    return std::nullopt;
  }

  /// Passes the connection to its session. @returns nothing, or the frame to answer instead; an empty frame closes the
  /// connection, and the rank tries again
  std::optional<Frame> route_to_job(ConnectionId id, ReceivedHandshake& handshake) {
    const auto place = jobs_.find(handshake.hello.role);
    if (place == jobs_.end() && handshake.hello.role == ClientRole::rank) {
      return Frame();  // no job yet
    }
    if (place == jobs_.end()) {
      return encode(
          Refused{"launchers of other nodes meet at the launcher of node 0, and this store is not one's; "
                  "start this process with --nnodes=1, or correct the address"});
    }
    JobServer& job = *place->second;
    const Join* join = std::get_if<Join>(&handshake.request);
    if (handshake.hello.attempt > job.options().attempt) {
      return Frame();  // this store still serves the earlier attempt
    }
    if (auto refused = refusal_of_earlier_attempt(handshake.hello, join, job.options())) {
      job.record_refusal(refused->sentence);
      return encode(*std::move(refused));
    }
    std::variant<Accepted, Refused, Failure> answer =
        join != nullptr ? job.admit(*join) : job.admit(std::get<Resume>(handshake.request));
    const Accepted* accepted = std::get_if<Accepted>(&answer);
    if (accepted == nullptr) {
      return std::visit([](auto& each) { return encode(each); }, answer);
    }
    Frame frame = encode(*accepted);
    if (options_.secret) {
      const Proof proof = handshake.transcript.proof_for(ProofSide::store, *options_.secret, frame);
      std::copy(proof.begin(), proof.end(), frame.end() - static_cast<std::ptrdiff_t>(proof.size()));
    }
    std::unique_ptr<FramedConnection> connection = std::move(with_hello_.at(id).connection);
    static_cast<void>(connection->writer.queue(frame));  // its queue is empty
    const std::uint64_t has = join != nullptr ? 0 : std::get<Resume>(handshake.request).received;
    job.attach(accepted->token.session, std::move(connection), has);
    return std::nullopt;
  }

  static std::optional<Refused> refusal_of_earlier_attempt(const Hello& hello, const Join* join,
                                                           const StoreJobOptions& job) {
    if (hello.attempt < job.attempt) {
      return Refused{
          format_text("{} belongs to attempt {} of the job, which has been started again as attempt {}; end what is "
                      "left of the earlier attempt",
                      {join == nullptr ? "a process" : process_text(*join), hello.attempt, job.attempt})};
    }
    return std::nullopt;
  }

  /// Sends `frame` unless it is empty, and waits up to a second for the peer to read it and close.
  async::Task<void> reject(FramedConnection& connection, Frame frame) {
    if (frame.empty()) {
      co_return;
    }
    const Deadline deadline = Deadline::after(std::chrono::seconds(1));
    const net::IoResult sent = co_await connection.writer.write_frame(frame, deadline);
    if (!sent.ok()) {
      co_return;
    }
    connection.tcp.shutdown_write();
    for (bool open = true; open;) {
      const net::FrameResult rest = co_await connection.reader.read_frame(deadline);
      open = rest.ok();
    }
  }

  /// The server itself cannot continue.
  void fail_all_jobs(const std::exception_ptr& reason) {
    std::string text = "an unknown exception";
    try {
      std::rethrow_exception(reason);
    } catch (const std::exception& error) {
      text = error.what();
    } catch (...) {
    }
    for (const auto& [role, job] : jobs_) {
      job->post_failure(Cause{CauseKind::exception, -1, {}, "the store cannot go on: " + text});
    }
  }

  async::EventLoop& loop_;
  std::vector<net::Listener> listeners_;
  ServerOptions options_;
  std::map<ClientRole, std::unique_ptr<JobServer>> jobs_;
  ConnectionId last_id_ = 0;
  PendingConnections without_hello_;
  PendingConnections with_hello_;             ///< have sent a valid Hello, and have no session yet
  std::vector<async::TaskHandle> accepting_;  ///< last: destroyed before the members that they use
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
