#pragma once
/// @file
/// PendingPeers: connections to a channel's rank 0 before their hello message.

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

/// A connection, and whether its peer is a thread of this process. (ThreadSanitizer cannot relate two mappings of one
/// memory, so ranks that are threads share one.)
struct PeerSocket {
  net::UnixConnection connection;
  bool same_process = false;

  explicit PeerSocket(net::UnixConnection to) : connection(std::move(to)) {
    same_process = connection.peer_credentials().pid == ::getpid();
  }
};

/// Polls all connections at once: a rank may send its hello late, and processes outside the job delay no rank. Of more
/// than `most` connections, the oldest is closed.
class PendingPeers {
 public:
  PendingPeers(net::UnixListener listener, std::size_t most) : listener_(std::move(listener)), most_(most) {}

  /// Entries to poll before serve().
  std::span<pollfd> poll_entries() {
    poll_entries_.assign(1, {listener_.descriptor(), POLLIN, 0});
    for (const PeerSocket& peer : peers_) {
      poll_entries_.push_back({peer.connection.descriptor(), POLLIN, 0});
    }
    return poll_entries_;
  }

  /// After polling: calls `on_hello(PeerSocket&&, bytes)` for each connection with a message, and accepts a new one.
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
      return;  // the connection is closed, or not a rank's
    }
    on_hello(std::move(peer), bytes);
  }

  /// Closes connections of other users' processes.
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
