#pragma once
/// @file
/// Connections to rank 0 of a channel whose hello has not come yet.

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/net/unix_socket.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A connection, and whether a thread of this very process is at its other end. (ThreadSanitizer sees nothing through
/// two mappings of one memory: ranks that are threads share one.)
struct PeerSocket {
  net::UnixConnection connection;
  bool same_process = false;

  explicit PeerSocket(net::UnixConnection to) : connection(std::move(to)) {
    same_process = connection.peer_credentials().pid == ::getpid();
  }
};

/// All are polled at once: a rank that is stalled before its hello has its time, and strangers take none from others.
/// Of more than `most` the oldest goes.
class PendingPeers {
 public:
  PendingPeers(net::UnixListener listener, std::size_t most) : listener_(std::move(listener)), most_(most) {}

  /// What to poll before serve().
  std::span<pollfd> poll_entries() {
    poll_entries_.assign(1, {listener_.descriptor(), POLLIN, 0});
    for (const PeerSocket& peer : peers_) {
      poll_entries_.push_back({peer.connection.descriptor(), POLLIN, 0});
    }
    return poll_entries_;
  }

  /// Once that was polled: calls `on_hello(PeerSocket&&, bytes)` for each that has sent something, and accepts new
  /// ones.
  /// @throws Error (posix)
  template <class OnHello>
  void serve(OnHello on_hello) {
    for (std::size_t i = peers_.size(); i-- > 0;) {
      if (poll_entries_[i + 1].revents != 0) {
        PeerSocket peer = std::move(peers_[i]);
        peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(i));
        receive_hello(std::move(peer), on_hello);
      }
    }
    if (poll_entries_[0].revents != 0) {
      add(PeerSocket(listener_.accept(Deadline::after(std::chrono::seconds(1)))));
    }
  }

 private:
  template <class OnHello>
  static void receive_hello(PeerSocket peer, OnHello& on_hello) {
    std::vector<std::byte> bytes;
    try {
      bytes = peer.connection.receive(Deadline::after({}));
    } catch (const Error&) {
      return;  // it has gone, or sent what no rank sends
    }
    on_hello(std::move(peer), bytes);
  }

  /// A process of another user is no rank.
  void add(PeerSocket peer) {
    if (peer.connection.peer_credentials().uid == ::geteuid()) {
      if (peers_.size() >= most_) {
        peers_.erase(peers_.begin());
      }
      peers_.push_back(std::move(peer));
    }
  }

  net::UnixListener listener_;
  const std::size_t most_;
  std::vector<PeerSocket> peers_;
  std::vector<pollfd> poll_entries_;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
