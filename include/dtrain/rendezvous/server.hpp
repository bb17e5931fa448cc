#pragma once
/// @file
/// rendezvous::Server: the door of a store: who may enter, and to which job.

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

#include "dtrain/core/open_files.hpp"
#include "dtrain/net/listener.hpp"
#include "dtrain/rendezvous/door_codec.hpp"
#include "dtrain/rendezvous/served_job.hpp"
#include "dtrain/rendezvous/too_few_files.hpp"
#include "dtrain/rendezvous/transcript.hpp"
#include "dtrain/rendezvous/unjoined_bound.hpp"
#include "dtrain/rendezvous/version_text.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Serves at most one job of each role, from its construction to its destruction, which closes every connection at
/// once. Lifetime: the loop outlives it. Threads: the loop's, construction and destruction included.
class Server {
 public:
  /// @param listeners at least one
  Server(async::EventLoop& loop, std::vector<net::Listener> listeners, ServerOptions options)
      : loop_(loop), listeners_(std::move(listeners)), options_(std::move(options)) {
    raise_open_files();
    options_.limits.unjoined_connections = unjoined_bound(options_.limits.unjoined_connections);
    for (net::Listener& listener : listeners_) {
      accepting_.push_back(
          loop_.spawn(accept_all(listener), [this](const std::exception_ptr& reason) { broken(reason); }));
    }
  }
  Server(async::EventLoop& loop, net::Listener listener, ServerOptions options)
      : Server(loop, one(std::move(listener)), std::move(options)) {}
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() = default;

  /// Where it listens; the first of its addresses.
  net::Endpoint local() const noexcept { return listeners_.front().local(); }

  /// Opens a job. A former one of its role ends: its sessions are closed, and who comes late is refused by name.
  /// Where this process may not open as many files as the job needs, the job has failed from the beginning.
  /// Lifetime of the result: until the next job of its role, or the server's end. @throws as ServedJob
  ServedJob& open(JobOptions options) {
    auto job = std::make_unique<ServedJob>(loop_, std::move(options), options_.limits);
    std::unique_ptr<ServedJob>& place = jobs_[job->options().role];
    place = std::move(job);
    if (const std::optional<Cause> cause = too_few_files(place->options())) {
      place->post_failure(*cause);
    }
    return *place;
  }

  /// How many connections have not joined: for tests and diagnosis.
  std::size_t visitors() const noexcept { return unheard_.size() + greeted_.size(); }

 private:
  /// A connection that has not joined.
  struct Visitor {
    std::unique_ptr<Link> link;
    async::Spawned task;  ///< gone before the link
  };
  using VisitorId = std::uint64_t;
  using Visitors = std::map<VisitorId, Visitor>;  ///< the oldest first

  /// What somebody said at the door.
  struct Call {
    Hello hello;
    Knock knock;
    Transcript transcript;
  };

  static Deadline a_day() { return Deadline::after(std::chrono::hours(24)); }

  static std::vector<net::Listener> one(net::Listener listener) {
    std::vector<net::Listener> listeners;
    listeners.push_back(std::move(listener));
    return listeners;
  }

  async::Task<void> accept_all(net::Listener& listener) {
    for (std::size_t unheard = 1;; ++unheard) {
      std::optional<net::Connection> accepted = co_await listener.accept(a_day());
      if (accepted) {
        admit(std::move(*accepted));
      }
      if (unheard >= most_visitors() / 8) {  // they are heard before many others could push them out
        co_await loop_.sleep_for(std::chrono::milliseconds(0));
        unheard = 0;
      }
    }
  }

  /// Where all ranks of a large job come at once, there is room for each of them.
  std::size_t most_visitors() const noexcept {
    std::size_t most = options_.limits.unjoined_connections;
    for (const auto& [role, job] : jobs_) {
      const auto ranks = static_cast<std::size_t>(job->options().world_size);
      most += ranks - std::min(ranks, job->sessions());
    }
    return most;
  }

  void admit(net::Connection connection) {
    if (visitors() >= most_visitors()) {
      Visitors& visitors = crowd();
      visitors.erase(visitors.begin());
    }
    const VisitorId id = ++last_id_;
    try {
      Visitor& visitor = unheard_[id];
      visitor.link = std::make_unique<Link>(std::move(connection), max_door_bytes);
      visitor.link->watch(options_.limits.liveness);
      visitor.task = loop_.spawn(receive(id, *visitor.link));
    } catch (const std::exception&) {  // it is gone already, or there is no memory for it: the others are served on
      unheard_.erase(id);
    }
  }

  /// Where the oldest makes room for one more. Anybody can say Hello: so those who did, of whom a rank is one until the
  /// store's answer has come back to it, have half of the places before the others, and no more. Neither floods of
  /// connections nor crowds of greeters push a rank out before half of all places have been given away anew.
  Visitors& crowd() noexcept { return greeted_.size() > most_visitors() / 2 || unheard_.empty() ? greeted_ : unheard_; }

  /// One visitor, from its first byte to its session or its end. What goes wrong with it ends it and nobody else.
  async::Task<void> receive(VisitorId id, Link& link) {
    try {
      const Deadline deadline = Deadline::after(options_.limits.handshake);
      std::variant<std::monostate, Refused, Call> heard = co_await hear(id, link, deadline);
      if (const Refused* refused = std::get_if<Refused>(&heard)) {
        co_await turn_away(link, encode(*refused));
      } else if (Call* call = std::get_if<Call>(&heard)) {
        const std::optional<Frame> no = let_in(id, *call);
        if (no) {
          co_await turn_away(link, *no);
        }
      }
    } catch (const std::exception&) {  // the connection broke, or there is no memory for it
    }
    if (unheard_.erase(id) == 0) {
      greeted_.erase(id);
    }
  }

  /// Hello, Challenge, and Join or Resume; nothing for what makes no sense or comes too late.
  async::Task<std::variant<std::monostate, Refused, Call>> hear(VisitorId id, Link& link, Deadline deadline) {
    Call call;
    const net::FrameResult first = co_await link.reader.read_frame(deadline);
    auto hello = first.ok() ? decode_hello(first.payload, version_text()) : std::nullopt;
    if (!hello) {
      co_return std::monostate();
    }
    if (Refused* refused = std::get_if<Refused>(&*hello)) {
      co_return std::move(*refused);
    }
    call.hello = std::get<Hello>(std::move(*hello));
    if (auto refused = wrong_secret(call.hello)) {
      co_return *std::move(refused);
    }
    greeted_.insert(unheard_.extract(id));
    call.transcript.add(first.payload);
    const Frame challenge = encode(Challenge{random_bytes<16>(), options_.secret.has_value()});
    call.transcript.add(challenge);
    const net::IoResult sent = co_await link.writer.write_frame(challenge, deadline);
    if (!sent.ok()) {
      co_return std::monostate();
    }
    const net::FrameResult second = co_await link.reader.read_frame(deadline);
    std::optional<Knock> knock = second.ok() ? decode_knock(second.payload) : std::nullopt;
    if (!knock) {
      co_return std::monostate();
    }
    if (options_.secret && !call.transcript.is_proved(Prover::rank, *options_.secret, second.payload)) {
      co_return Refused{
          "its secret is not the job's; give all of the job the same DTRAIN_SECRET or DTRAIN_SECRET_FILE"};
    }
    call.transcript.add(second.payload);
    call.knock = *std::move(knock);
    co_return std::move(call);
  }

  std::optional<Refused> wrong_secret(const Hello& hello) const {
    if (options_.secret && !hello.has_secret) {
      return Refused{
          "the job has a secret and this process does not; give all of the job the same DTRAIN_SECRET or "
          "DTRAIN_SECRET_FILE"};
    }
    return std::nullopt;
  }

  /// The session takes the link over, and nothing is returned; or what to answer instead.
  std::optional<Frame> let_in(VisitorId id, Call& call) {
    const auto place = jobs_.find(call.hello.role);
    if (place == jobs_.end() && call.hello.role == Role::rank) {
      return Frame();  // not yet
    }
    if (place == jobs_.end()) {
      return encode(
          Refused{"launchers of other nodes meet at the launcher of node 0, and this store is not one's; "
                  "start this process with --nnodes=1, or correct the address"});
    }
    ServedJob& job = *place->second;
    const Join* join = std::get_if<Join>(&call.knock);
    if (call.hello.generation > job.options().generation) {
      return Frame();  // the store itself still belongs to the former attempt
    }
    if (auto refused = earlier_attempt(call.hello, join, job.options())) {
      job.note_refusal(refused->sentence);
      return encode(*std::move(refused));
    }
    std::variant<Accepted, Refused, Failure> answer =
        join != nullptr ? job.admit(*join) : job.admit(std::get<Resume>(call.knock));
    const Accepted* accepted = std::get_if<Accepted>(&answer);
    if (accepted == nullptr) {
      return std::visit([](auto& each) { return encode(each); }, answer);
    }
    Frame frame = encode(*accepted);
    if (options_.secret) {
      const Proof proof = call.transcript.proof_for(Prover::store, *options_.secret, frame);
      std::copy(proof.begin(), proof.end(), frame.end() - static_cast<std::ptrdiff_t>(proof.size()));
    }
    std::unique_ptr<Link> link = std::move(greeted_.at(id).link);
    static_cast<void>(link->writer.queue(frame));  // its queue is empty
    const std::uint64_t has = join != nullptr ? 0 : std::get<Resume>(call.knock).received;
    job.carry(accepted->ticket.session, std::move(link), has);
    return std::nullopt;
  }

  static std::optional<Refused> earlier_attempt(const Hello& hello, const Join* join, const JobOptions& job) {
    if (hello.generation < job.generation) {
      return Refused{(join == nullptr ? "a process" : who(*join)) + " belongs to attempt " +
                     std::to_string(hello.generation) + " of the job, which has been started again as attempt " +
                     std::to_string(job.generation) + "; end what is left of the earlier attempt"};
    }
    return std::nullopt;
  }

  /// Sends the last word, and gives the other side a moment to read it and close. @param frame empty: nothing is said
  async::Task<void> turn_away(Link& link, Frame frame) {
    if (frame.empty()) {
      co_return;
    }
    const Deadline deadline = Deadline::after(std::chrono::seconds(1));
    const net::IoResult sent = co_await link.writer.write_frame(frame, deadline);
    if (!sent.ok()) {
      co_return;
    }
    link.connection.shutdown_write();
    for (bool open = true; open;) {
      const net::FrameResult rest = co_await link.reader.read_frame(deadline);
      open = rest.ok();
    }
  }

  /// The server itself cannot go on.
  void broken(const std::exception_ptr& reason) {
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
  std::map<Role, std::unique_ptr<ServedJob>> jobs_;
  VisitorId last_id_ = 0;
  Visitors unheard_;
  Visitors greeted_;                       ///< have said Hello as a rank does, and nothing yet that shows who they are
  std::vector<async::Spawned> accepting_;  ///< last: gone before what they use
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
