#pragma once
/// @file
/// SetupConnections: Unix connections between rank 0 and every other rank of a channel.

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/shared_memory/setup/listener_address.hpp"
#include "dtrain/backend/shared_memory/setup/pending_peers.hpp"
#include "dtrain/backend/shared_memory/setup/setup_message.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/crypto/random.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/process/open_files.hpp"
#include "dtrain/net/unix_socket.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A star around rank 0. Leaves nothing in the file system, and nothing at all after the last process.
class SetupConnections {
 public:
  /// Collective, blocking. Rank 0 listens under a random name and publishes it in the store, with a token; it rejects
  /// connections without the token. @throws Error, JobFailed
  static SetupConnections open(const ChannelContext& context, Deadline deadline) {
    SetupConnections connections(context);
    if (connections.rank_ == 0 && connections.size_ > 1) {
      connections.accept_all_or_report(context, deadline);
    } else if (connections.rank_ != 0) {
      connections.connect(context, deadline);
    }
    return connections;
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// A rank's number in the job, for errors.
  int job_rank(int rank) const noexcept { return members_.rank_in_job(rank); }

  /// On rank 0: to that peer. Elsewhere: to rank 0.
  PeerSocket& socket(int peer) noexcept { return *sockets_[rank_ == 0 ? static_cast<std::size_t>(peer - 1) : 0]; }

  /// Waits call `check` every 20 ms; it throws to end the wait.
  void set_check(std::function<void()> check) { check_ = std::move(check); }

  /// Blocking: the message of `kind` in the `number`-th setup; messages of earlier setups are skipped.
  /// @throws Error (timeout, closed, protocol); the error that the peer sends instead; exceptions of the check
  SetupMessage receive(int peer, SetupMessageKind kind, std::uint64_t number, Deadline deadline) {
    return with_context(peer, [&] {
      for (;;) {
        wait_readable(socket(peer).connection.descriptor(), deadline);
        const SetupMessage message = message_from(socket(peer).connection.receive(deadline));
        if (message.number < number) {
          continue;
        }
        if (message.number == number && message.kind == kind) {
          return message;
        }
        if (message.number == number && message.kind == SetupMessageKind::outcome) {
          message.throw_if_error();
        }
        throw Error(Errc::protocol,
                    "a setup message came out of order; do all ranks open the same channels and "
                    "allocate the same memory in the same order?");
      }
    });
  }

  /// Blocking. @throws as receive
  Descriptor receive_descriptor(int peer, Deadline deadline) {
    return with_context(peer, [&] {
      wait_readable(socket(peer).connection.descriptor(), deadline);
      return std::move(socket(peer).connection.receive_descriptor(deadline).descriptor);
    });
  }

  /// Blocks hardly: a message fits the socket's buffer. @throws Error
  void send(int peer, const SetupMessage& message, Deadline deadline) {
    with_context(peer, [&] { socket(peer).connection.send(message.as_bytes(), deadline); });
  }

  /// Sends to rank 0, whose answer is received next. Ignores a closed connection, because rank 0's last message
  /// explains more.
  void send_before_receiving(const SetupMessage& message, Deadline deadline) {
    try {
      socket(0).connection.send(message.as_bytes(), deadline);
    } catch (const Error& error) {
      if (error.code() != make_error_code(Errc::closed)) {
        throw;
      }
    }
  }

  /// @throws as send. The caller keeps `descriptor`.
  void send_descriptor(int peer, int descriptor, Deadline deadline) {
    const std::byte one{1};
    with_context(peer, [&] { socket(peer).connection.send_descriptor(descriptor, std::span(&one, 1), deadline); });
  }

 private:
  explicit SetupConnections(const ChannelContext& context)
      : rank_(context.members.rank),
        size_(context.members.world_size),
        channel_(context.name),
        members_(context.members),
        failure_(context.failure),
        check_([failure = context.failure, rank = context.reporting_rank()] { failure->throw_if_failed(rank); }) {}

  static std::string listener_key(const ChannelContext& context) { return context.name + "/shared_memory"; }

  /// On failure, sends the cause to connected ranks before their connections close.
  void accept_all_or_report(const ChannelContext& context, Deadline deadline) {
    try {
      accept_all(context, deadline);
    } catch (const Error& error) {
      SetupMessage outcome;
      outcome.kind = SetupMessageKind::outcome;
      outcome.number = 1;
      outcome.set_error(error);
      for (std::optional<PeerSocket>& peer : sockets_) {
        try {
          if (peer) {
            peer->connection.send(outcome.as_bytes(), Deadline::after(std::chrono::seconds(1)));
          }
        } catch (const Error&) {
          // The peer has closed its connection, and reports its own cause.
        }
      }
      throw;
    }
  }

  /// Rank 0 has a connection to each other rank while memory is mapped.
  static void require_files(std::size_t connections) {
    constexpr std::size_t spare = 8;  // the listener, the memfd, and connections of other processes
    if (!make_room_for_files(connections + spare)) {
      const std::string needed = std::to_string(open_files() + connections + spare);
      throw Error(Errc::limit, "mapping one memory into " + std::to_string(connections) + " ranks needs " + needed +
                                   " open files, and this process may open " +
                                   std::to_string(open_files_limit().value_or(0)) + "; raise the limit (ulimit -n " +
                                   needed + ")");
    }
  }

  void accept_all(const ChannelContext& context, Deadline deadline) {
    const ListenerAddress listener{"dtrain-" + random_job_id(), random_job_id()};
    std::optional<PendingPeers> pending;
    try {
      require_files(static_cast<std::size_t>(size_));
      pending.emplace(net::UnixListener(listener.name), static_cast<std::size_t>(size_) + max_strangers);
    } catch (const Error& error) {
      context.store.set_blocking(listener_key(context), ListenerAddress::error_text(job_rank(0), error), deadline);
      throw;
    }
    context.store.set_blocking(listener_key(context), listener.to_text(), deadline);
    sockets_.resize(static_cast<std::size_t>(size_ - 1));
    int arrived = 0;
    while (arrived < size_ - 1) {
      wait_for_peers(pending->poll_entries(), deadline);
      pending->serve([&](PeerSocket peer, const std::vector<std::byte>& hello) {
        arrived += admit(std::move(peer), hello, listener.token) ? 1 : 0;
      });
    }
    context.store.erase_blocking(listener_key(context), deadline);
  }

  /// @returns false unless `peer` is a rank that is still expected
  bool admit(PeerSocket peer, const std::vector<std::byte>& bytes, const std::string& token) {
    try {
      const SetupMessage hello = message_from(bytes);
      if (hello.kind != SetupMessageKind::hello || !std::equal(token.begin(), token.end(), hello.token.begin()) ||
          hello.rank <= 0 || hello.rank >= size_ || sockets_[static_cast<std::size_t>(hello.rank - 1)]) {
        return false;
      }
      sockets_[static_cast<std::size_t>(hello.rank - 1)].emplace(std::move(peer));
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  void connect(const ChannelContext& context, Deadline deadline) {
    const ListenerAddress listener =
        ListenerAddress::from(context.store.get_blocking(listener_key(context), deadline), context.name);
    with_context(0,
                 [&] { sockets_.emplace_back(std::in_place, net::UnixConnection::connect(listener.name, deadline)); });
    SetupMessage hello;
    hello.rank = rank_;
    std::copy(listener.token.begin(), listener.token.end(), hello.token.begin());
    send(0, hello, deadline);
  }

  void wait_for_peers(std::span<pollfd> poll_entries, Deadline deadline) const {
    try {
      wait_readable(poll_entries, deadline);
    } catch (const JobFailed&) {
      throw;
    } catch (const Error& error) {
      throw Error(error.code(), doing() + ", waiting for rank " + missing() + ": " + error.what());
    }
  }

  /// Waits in slices, so that the check can end it. @throws exceptions of the check; Error (timeout, posix)
  void wait_readable(int descriptor, Deadline deadline) const {
    pollfd entry{descriptor, POLLIN, 0};
    wait_readable(std::span(&entry, 1), deadline);
  }
  void wait_readable(std::span<pollfd> entries, Deadline deadline) const {
    for (;;) {
      check_();
      const bool last = deadline.passed();
      const int count = ::poll(entries.data(), entries.size(), 20);
      if (count > 0) {
        return;
      }
      if (count < 0 && errno != EINTR) {
        throw errno_error("waiting for a Unix socket");
      }
      if (last) {
        throw Error(Errc::timeout, "the deadline passed");
      }
    }
  }

  std::string missing() const {
    std::string ranks;
    for (int peer = 1; peer < size_; ++peer) {
      if (!sockets_[static_cast<std::size_t>(peer - 1)]) {
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(job_rank(peer));
      }
    }
    return ranks;
  }

  std::string doing() const { return "setting up shared memory for channel '" + channel_ + "'"; }

  /// Adds the peer's rank to a socket's error. The job's first cause, and an error that rank 0 sent, pass unchanged.
  template <class F>
  auto with_context(int peer, F call) const -> decltype(call()) {
    try {
      return call();
    } catch (const JobFailed&) {
      throw;
    } catch (const RemoteError&) {
      throw;
    } catch (const Error& error) {
      if (error.code() != make_error_code(Errc::timeout)) {
        failure_->block_until_failed(
            Deadline::after(std::chrono::milliseconds(500)));  // the first cause, if the peer is lost
      }
      check_();
      throw Error(error.code(), doing() + " with rank " + std::to_string(job_rank(peer)) + ": " + error.what());
    }
  }

  static constexpr std::size_t max_strangers = 16;

  int rank_;
  int size_;
  std::string channel_;
  rendezvous::Membership members_;
  std::shared_ptr<FailureLatch> failure_;
  std::function<void()> check_;
  std::vector<std::optional<PeerSocket>> sockets_;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
