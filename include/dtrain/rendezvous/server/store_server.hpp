#pragma once
/// @file
/// StoreServer: accepts a store's connections, performs the handshake, passes each to its job. WorkerConnections:
/// interface that takes over an elastic job's workers.

#include <algorithm>
#include <array>
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

#include "dtrain/core/crypto.hpp"
#include "dtrain/core/process/open_files.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/listener.hpp"
#include "dtrain/net/socket_address.hpp"
#include "dtrain/rendezvous/protocol/codec.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"
#include "dtrain/rendezvous/server/job_server.hpp"
#include "dtrain/rendezvous/server_state/job_state.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Takes over the connections of an elastic job's workers. Threads: the loop's.
class WorkerConnections {
 public:
  /// @param announce a frame whose proof is right @returns as JobServer::admit
  virtual Admission admit(std::span<const std::byte> announce, const std::shared_ptr<Session>& session) = 0;
  /// As JobServer::start.
  virtual void start(SessionId id, std::span<const std::byte> accepted) = 0;

 protected:
  ~WorkerConnections() = default;
};

/// Serves at most one job of each role, from its construction to its destruction, which closes every connection at
/// once. Lifetime: the loop outlives it.
/// Threads: the one that runs the event loop, which is the control thread of the rank or launcher that hosts the store.
class StoreServer {
 public:
  /// @param listeners at least one
  StoreServer(async::EventLoop& loop, std::vector<net::Listener> listeners, ServerOptions options)
      : loop_(loop),
        listeners_(std::move(listeners)),
        local_(listeners_.front().local()),
        options_(std::move(options)) {
    raise_open_files();
    options_.limits.pending_connections = pending_connection_limit(options_.limits.pending_connections);
    for (net::Listener& listener : listeners_) {
      accepting_.push_back(
          loop_.spawn(accept_all(listener), [this](const std::exception_ptr& reason) { stop_accepting(reason); }));
    }
  }
  StoreServer(async::EventLoop& loop, net::Listener listener, ServerOptions options)
      : StoreServer(loop, one(std::move(listener)), std::move(options)) {}
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  /// The first address that it listens at.
  net::SocketAddress local() const noexcept { return local_; }

  /// Opens a job, which replaces an earlier job of the same role. The earlier job's sessions are closed; its late ranks
  /// are rejected with a sentence. If this process may not open enough files for the job, or the server accepts no
  /// connections any more, the job has failed from the beginning. Lifetime of the result: until the next job of its
  /// role, or the server's end. @throws as JobServer
  JobServer& open(StoreJobOptions options) {
    auto job = std::make_unique<JobServer>(loop_, std::move(options), options_.limits);
    std::unique_ptr<JobServer>& place = job_of(job->options().role);
    place = std::move(job);
    if (broken_) {
      place->post_failure(*broken_);
    } else if (const std::optional<Cause> cause = too_few_files(place->options())) {
      place->post_failure(*cause);
    }
    return *place;
  }

  /// Sets the object that serves workers from now on; null: workers are rejected. Lifetime: `workers` outlives the
  /// server, or its use there.
  void set_workers(WorkerConnections* workers) noexcept { workers_ = workers; }

  /// Number of connections that have not joined: for tests and diagnosis.
  std::size_t pending_connections() const noexcept { return without_hello_.size() + with_hello_.size(); }

 private:
  /// A connection that has not joined.
  struct PendingConnection {
    std::shared_ptr<Session> session;
    async::TaskHandle task;  ///< destroyed before the session
  };
  using ConnectionId = std::uint64_t;
  using PendingConnections = std::map<ConnectionId, PendingConnection>;  ///< the oldest first

  struct ReceivedHandshake {
    std::optional<Hello> hello;
    Transcript transcript;
    Frame answer;
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
    for (const std::unique_ptr<JobServer>& job : jobs_) {
      const auto ranks = static_cast<std::size_t>(job ? job->options().world_size : 0);
      most += job ? ranks - std::min(ranks, job->sessions()) : 0;
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
      pending.session = std::make_shared<Session>(std::move(connection), max_handshake_bytes);
      pending.session->watch();
      pending.session->watch_unacknowledged(options_.limits.liveness);
      pending.task = loop_.spawn(receive(id, *pending.session));
    } catch (const std::exception&) {  // the connection is gone, or memory is short: serve the others
      without_hello_.erase(id);
    }
  }

  /// The connections whose oldest is closed to make room. A rank's connection has a Hello until the store answers its
  /// Join, but any process can send a Hello. So connections with a Hello keep up to half of all places, and those
  /// without one give way first. Neither a flood of connections nor one of Hellos evicts a rank before half of all
  /// places were reused.
  PendingConnections& pool_to_shrink() noexcept {
    return with_hello_.size() > max_pending_connections() / 2 || without_hello_.empty() ? with_hello_ : without_hello_;
  }

  /// Serves one connection until its job takes it over or it ends. An error ends this connection only.
  async::Task<void> receive(ConnectionId id, Session& session) {
    try {
      Deadline deadline = Deadline::after(options_.limits.handshake);
      ReceivedHandshake handshake;
      bool goes_on = true;
      while (goes_on) {
        const net::FrameResult received = co_await session.read_frame(deadline);
        goes_on = received.ok() && answer(id, handshake, received.payload);
        if (goes_on) {
          const net::IoResult sent = co_await session.write_frame(handshake.answer, deadline);
          handshake.answer.clear();
          goes_on = sent.ok();
        }
      }
      if (!handshake.answer.empty()) {  // a rejection: wait up to a second for the peer to read it and close
        deadline = Deadline::after(std::chrono::seconds(1));
        const net::IoResult sent = co_await session.write_frame(handshake.answer, deadline);
        session.shutdown_write();
        for (bool is_open = sent.ok(); is_open;) {
          const net::FrameResult rest = co_await session.read_frame(deadline);
          is_open = rest.ok();
        }
      }
    } catch (const std::exception&) {  // the connection broke, or there is no memory for it
    }
    if (without_hello_.erase(id) == 0) {
      with_hello_.erase(id);
    }
  }

  /// Takes a Hello, and then a Join. Sets the frame to answer: a Challenge; else the last one, or none for malformed
  /// messages and after the job has taken the connection over.
  /// @returns whether the next message is to be received after the answer
  bool answer(ConnectionId id, ReceivedHandshake& handshake, const Frame& received) {
    if (handshake.hello) {
      answer_join(id, handshake, received);
      return false;
    }
    auto hello = decode_hello(received, version_text);
    if (!hello) {
      return false;
    }
    if (Refused* refused = std::get_if<Refused>(&*hello)) {
      handshake.answer = refuse(*without_hello_.at(id).session, std::move(*refused));
      return false;
    }
    handshake.hello = std::get<Hello>(std::move(*hello));
    if (options_.secret && !handshake.hello->has_secret) {
      handshake.answer =
          refuse(*without_hello_.at(id).session,
                 {"the job has a secret and this process does not; give all of the job the same DTRAIN_SECRET or "
                  "DTRAIN_SECRET_FILE",
                  true});
      return false;
    }
    with_hello_.insert(without_hello_.extract(id));
    handshake.transcript.add(received);
    handshake.answer = encode(Challenge{random_bytes<16>(), options_.secret.has_value()});
    handshake.transcript.add(handshake.answer);
    return true;
  }

  /// The frame of a rejection by the server itself. A job whose ranks are missing names it: the process may be one.
  Frame refuse(const Session& session, Refused refused) {
    for (const std::unique_ptr<JobServer>& job : jobs_) {
      if (!job) continue;
      job->record_refusal(
          format_text("one at {}, to which the store said: {}", {session.peer().host(), refused.sentence}));
    }
    return encode(refused);
  }

  void answer_join(ConnectionId id, ReceivedHandshake& handshake, const Frame& received) {
    const bool is_worker = handshake.hello->role == ClientRole::worker;
    const auto join = is_worker ? std::nullopt : decode<std::variant<Join>>(received);
    if (!join && !is_worker) {
      return;
    }
    if (options_.secret && !handshake.transcript.is_proved(ProofSide::rank, *options_.secret, received)) {
      handshake.answer = refuse(
          *with_hello_.at(id).session,
          {"its secret is not the job's; give all of the job the same DTRAIN_SECRET or DTRAIN_SECRET_FILE", true});
      return;
    }
    handshake.transcript.add(received);
    handshake.answer =
        is_worker ? admit_worker(id, handshake, received) : route_to_job(id, handshake, std::get<Join>(*join));
  }

  /// Passes the connection to its job. @returns the frame to answer instead; an empty frame closes a connection that no
  /// job has taken over, and the rank tries again
  Frame route_to_job(ConnectionId id, const ReceivedHandshake& handshake, const Join& join) {
    const std::unique_ptr<JobServer>& place = job_of(handshake.hello->role);
    if (!place && handshake.hello->role == ClientRole::rank) {
      return {};  // no job yet
    }
    if (!place) {
      const char* const elastic =
          "this store is an elastic job's, whose nodes have --nnodes=MIN:MAX or --min-ranks; start this process with "
          "the same flags";
      const char* const ordinary =
          "launchers of other nodes join at the launcher of node 0, and this store is not a launcher's; start this "
          "process with --nnodes=1, or correct the address";
      return encode(Refused{workers_ != nullptr ? elastic : ordinary});
    }
    JobServer& job = *place;
    const std::uint64_t attempt = job.options().attempt;
    if (handshake.hello->attempt > attempt) {
      return {};  // this store still serves the earlier attempt
    }
    if (handshake.hello->attempt < attempt) {
      std::string sentence = format_text(
          "{} belongs to attempt {} of the job, which has been started again as attempt {}; end what is "
          "left of the earlier attempt",
          {process_text(join), handshake.hello->attempt, attempt});
      job.record_refusal(sentence);
      return encode(Refused{std::move(sentence)});
    }
    return start(job, handshake, job.admit(join, with_hello_.at(id).session));
  }

  /// route_to_job() for the Announce of a worker.
  Frame admit_worker(ConnectionId id, const ReceivedHandshake& handshake, const Frame& announce) {
    if (workers_ == nullptr) {
      return encode(
          Refused{"this store is not an elastic job's; start all of the job with the same --nnodes and "
                  "--min-ranks"});
    }
    return start(*workers_, handshake, workers_->admit(announce, with_hello_.at(id).session));
  }

  template <class Owner>
  Frame start(Owner& owner, const ReceivedHandshake& handshake, Admission admission) {
    if (!admission.session) {
      return std::move(admission.frame);
    }
    if (options_.secret) {
      handshake.transcript.prove(ProofSide::store, *options_.secret, admission.frame);
    }
    owner.start(*admission.session, admission.frame);
    return {};
  }

  /// The server itself cannot continue: it closes its listeners, which rejects those who wait there, and every job of
  /// it fails, also one that is opened later.
  void stop_accepting(const std::exception_ptr& reason) {
    std::string text;
    try {
      std::rethrow_exception(reason);
    } catch (...) {
      text = exception_text();
    }
    accepting_.clear();
    listeners_.clear();
    broken_ = Cause{CauseKind::exception, -1, {}, format_text("the store cannot go on: {}", {text})};
    for (const std::unique_ptr<JobServer>& job : jobs_) {
      if (job) {
        job->post_failure(*broken_);
      }
    }
  }

  std::unique_ptr<JobServer>& job_of(ClientRole role) noexcept { return jobs_[role == ClientRole::rank ? 0 : 1]; }

  async::EventLoop& loop_;
  std::vector<net::Listener> listeners_;
  net::SocketAddress local_;
  ServerOptions options_;
  std::array<std::unique_ptr<JobServer>, 2> jobs_;  ///< see job_of(); null: not opened
  WorkerConnections* workers_ = nullptr;
  std::optional<Cause> broken_;  ///< why no connection is accepted any more
  ConnectionId last_id_ = 0;
  PendingConnections without_hello_;
  PendingConnections with_hello_;             ///< have sent a valid Hello, and have no session yet
  std::vector<async::TaskHandle> accepting_;  ///< last: destroyed before the members that they use
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
