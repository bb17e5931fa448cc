#pragma once
/// @file
/// rendezvous::Server: the store of a job behind a listener.

#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/async/event.hpp"
#include "dtrain/net/listener.hpp"
#include "dtrain/rendezvous/codec.hpp"
#include "dtrain/rendezvous/job.hpp"
#include "dtrain/rendezvous/peer.hpp"
#include "dtrain/rendezvous/random.hpp"
#include "dtrain/rendezvous/server_options.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Serves one job from its construction to its destruction, which closes every connection at once.
/// Lifetime: the loop outlives it. Threads: the loop's, construction and destruction included.
class Server {
 public:
  /// @throws Error (posix) if the system gives no random bytes; Error (invalid_argument) for an impossible world size
  Server(async::EventLoop& loop, net::Listener listener, ServerOptions options)
      : loop_(loop),
        listener_(std::move(listener)),
        options_(checked(std::move(options))),
        began_(Deadline::Clock::now()),
        formation_(options_.formation),
        job_(options_.world_size, options_.owner, random_job_id(), options_.limits),
        over_(loop),
        formation_changed_(loop) {
    const async::ExceptionHandler fail = [this](const std::exception_ptr& reason) { broken(reason); };
    accepting_ = loop_.spawn(accept_all(), fail);
    forming_ = loop_.spawn(watch_formation(), fail);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() = default;

  /// Where it listens.
  net::Endpoint local() const noexcept { return listener_.local(); }

  /// Posts a failure that the server's own process noticed. The first cause of the job wins and goes to every rank.
  void post_failure(const Cause& cause) {
    job_.post(cause);
    apply();
  }

  /// The job's first cause; nothing while it is well.
  const std::optional<Cause>& cause() const noexcept { return job_.cause(); }

  /// Whether by the deadline every rank has left, or, after a failure, closed its connection.
  async::Task<bool> all_left(Deadline deadline) {
    const async::Ready ready = co_await over_.wait(deadline);
    co_return ready == async::Ready::ready;
  }

  /// How many connections there are, joined or not: for tests and diagnosis.
  std::size_t connections() const noexcept { return peers_.size(); }

 private:
  /// A connection and the tasks that serve it. The tasks share the peer, so that they may take out their own entry.
  struct Entry {
    std::shared_ptr<Peer> peer;
    async::Spawned reading{};
    async::Spawned writing{};
  };

  static ServerOptions checked(ServerOptions options) {
    if (options.world_size < 1 || options.world_size > max_world_size) {
      throw Error(Errc::invalid_argument, "opening the store of a job of " + std::to_string(options.world_size) +
                                              " ranks; 1 to " + std::to_string(max_world_size) + " are possible");
    }
    return options;
  }

  static Deadline a_day() { return Deadline::after(std::chrono::hours(24)); }

  async::Task<void> accept_all() {
    for (;;) {
      std::optional<net::Connection> accepted = co_await listener_.accept(a_day());
      if (accepted) {
        admit(std::move(*accepted));
        co_await loop_.sleep_for(std::chrono::milliseconds(0));  // it is heard before many others could push it out
      }
    }
  }

  void admit(net::Connection connection) {
    if (unjoined_.size() >= options_.limits.unjoined_connections) {
      const SessionId oldest = *unjoined_.begin();
      unjoined_.erase(oldest);
      peers_.erase(oldest);
    }
    const SessionId id = ++last_id_;
    Entry& entry = peers_[id];
    unjoined_.insert(id);
    entry.peer = std::make_shared<Peer>(loop_, id, std::move(connection), options_.limits);
    entry.reading = loop_.spawn(serve(entry.peer, &Server::converse));
    entry.writing = loop_.spawn(serve(entry.peer, &Server::write));
  }

  /// Runs one direction of a connection. Its end, or its exception, is the end of both.
  async::Task<void> serve(std::shared_ptr<Peer> peer, async::Task<std::string> (Server::*direction)(Peer&)) {
    std::string how;
    try {
      how = co_await (this->*direction)(*peer);
    } catch (const std::exception& error) {
      how = error.what();
    }
    gone(peer->id(), how);
  }

  async::Task<std::string> write(Peer& peer) { return peer.write_all(); }

  /// The hello, and then what a rank asks. @returns how the connection ended
  async::Task<std::string> converse(Peer& peer) {
    {
      net::FrameReader reader(peer.connection(), max_hello_bytes);
      const net::FrameResult frame = co_await reader.read_frame(Deadline::after(options_.limits.handshake));
      if (!frame.ok()) {
        co_return frame.reason;
      }
      if (!greet(peer.id(), frame.payload)) {
        co_return "it sent bytes that are no hello";
      }
    }
    net::FrameReader reader(peer.connection(), max_frame_bytes);
    for (;;) {
      co_await peer.room();
      const net::FrameResult frame = co_await reader.read_frame(a_day());
      if (!frame.ok() && frame.status != net::FrameStatus::timed_out) {
        co_return frame.reason;
      }
      if (!frame.ok() || !job_.has_joined(peer.id())) {
        continue;  // it has left or was refused: what it still says is read only so that its end is seen
      }
      std::optional<FromRank> message = decode_from_rank(frame.payload);
      if (!message) {
        co_return "it sent bytes that do not follow the protocol";
      }
      job_.receive(peer.id(), *std::move(message));
      apply();
    }
  }

  /// False for what is no hello of any version: then there is nobody to explain it to.
  bool greet(SessionId id, std::span<const std::byte> frame) {
    auto decoded = decode_hello(frame, version_text());
    if (!decoded) {
      return false;
    }
    if (Refused* refused = std::get_if<Refused>(&*decoded)) {
      job_.refuse(id, std::move(*refused));
    } else {
      const Hello& hello = std::get<Hello>(*decoded);
      job_.hello(id, hello);
      if (job_.has_joined(id)) {
        unjoined_.erase(id);
        expect_within(hello.patience_ms);
      }
    }
    apply();
    return true;
  }

  /// A rank that waits less long than the store ends the formation for all: without it there is no job.
  void expect_within(std::uint64_t patience_ms) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(formation_.remaining());
    if (patience_ms < static_cast<std::uint64_t>(left.count())) {
      formation_ = Deadline::after(std::chrono::milliseconds(patience_ms));
    }
    formation_changed_.set();
  }

  async::Task<void> watch_formation() {
    while (!job_.formed() && !job_.cause()) {
      co_await formation_changed_.wait(formation_);
      if (formation_.passed()) {
        job_.formation_late(seconds_text(Deadline::Clock::now() - began_));
        apply();
      }
    }
  }

  /// A connection has ended. Its own tasks call this; the peer lives on in them.
  void gone(SessionId id, const std::string& how) {
    std::optional<Cause> loss = job_.closed(id, "its connection ended without leave(ok) (" + how + ")");
    peers_.erase(id);
    unjoined_.erase(id);
    if (loss && options_.loss_grace.count() > 0 && mourning_.done()) {
      mourning_ = loop_.spawn(mourn(*std::move(loss)));
    } else if (loss && options_.loss_grace.count() == 0) {
      job_.post(*loss);
    }
    apply();
  }

  async::Task<void> mourn(Cause loss) {
    co_await loop_.sleep_for(options_.loss_grace);
    post_failure(loss);
  }

  /// Does what the job wants done. A handler may post a failure meanwhile: it is done after what came before.
  void apply() {
    if (std::exchange(applying_, true)) {
      return;
    }
    std::vector<SessionId> unread;
    for (auto effects = job_.take_effects(); !effects.empty(); effects = job_.take_effects()) {
      for (Effect& effect : effects) {
        std::visit([&](auto& each) { perform(each, unread); }, effect);
      }
    }
    applying_ = false;
    if (job_.over()) {
      over_.set();
    }
    for (const SessionId id : unread) {
      gone(id, "it left more than " + std::to_string(options_.limits.outgoing_bytes) + " bytes of answers unread");
    }
  }

  void perform(Send& send, std::vector<SessionId>& unread) {
    const auto found = peers_.find(send.session);
    if (found != peers_.end() && !found->second.peer->send(encode(std::move(send.message)))) {
      unread.push_back(send.session);
    }
  }
  void perform(const CloseAfterSending& close, std::vector<SessionId>&) {
    const auto found = peers_.find(close.session);
    if (found != peers_.end()) {
      found->second.peer->close_after_sending();
    }
  }
  void perform(const Joined& joined, std::vector<SessionId>&) {
    if (options_.on_joined) {
      options_.on_joined(joined.rank, joined.host);
    }
  }
  void perform(const HasLeft& left, std::vector<SessionId>&) {
    if (options_.on_left) {
      options_.on_left(left.rank);
    }
  }
  void perform(const HasFailed& failed, std::vector<SessionId>&) {
    if (options_.on_failure) {
      options_.on_failure(failed.cause);
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
    post_failure(Cause{CauseKind::exception, -1, {}, "the store cannot go on: " + text});
  }

  async::EventLoop& loop_;
  net::Listener listener_;
  ServerOptions options_;
  Deadline::Clock::time_point began_;
  Deadline formation_;
  Job job_;
  async::Event over_;
  async::AutoResetEvent formation_changed_;
  bool applying_ = false;
  SessionId last_id_ = 0;
  std::set<SessionId> unjoined_;  ///< connections that have not joined, the oldest first
  std::map<SessionId, Entry> peers_;
  async::Spawned mourning_;  ///< the tasks come last: they are gone before what they use
  async::Spawned forming_;
  async::Spawned accepting_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
