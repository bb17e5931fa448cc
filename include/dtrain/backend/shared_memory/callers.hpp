#pragma once
/// @file
/// Who has connected to rank 0 of a channel and not yet said who it is.

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
struct Link {
  net::UnixConnection connection;
  bool same_process = false;

  explicit Link(net::UnixConnection to) : connection(std::move(to)) {
    same_process = connection.peer_credentials().pid == ::getpid();
  }
};

/// All are heard at once: a rank that is stalled before it has greeted has its time, and strangers take nobody's. Of
/// more than `most` the oldest goes.
class Callers {
 public:
  Callers(net::UnixListener listener, std::size_t most) : listener_(std::move(listener)), most_(most) {}

  /// What to poll before serve().
  std::span<pollfd> waiting() {
    waiting_.assign(1, {listener_.descriptor(), POLLIN, 0});
    for (const Link& caller : callers_) {
      waiting_.push_back({caller.connection.descriptor(), POLLIN, 0});
    }
    return waiting_;
  }

  /// Once that was polled: calls `greeted(Link&&, bytes)` for each from whom something has come, and takes new ones in.
  /// @throws Error (posix)
  template <class Greeted>
  void serve(Greeted greeted) {
    for (std::size_t i = callers_.size(); i-- > 0;) {
      if (waiting_[i + 1].revents != 0) {
        Link caller = std::move(callers_[i]);
        callers_.erase(callers_.begin() + static_cast<std::ptrdiff_t>(i));
        hear(std::move(caller), greeted);
      }
    }
    if (waiting_[0].revents != 0) {
      take_in(Link(listener_.accept(Deadline::after(std::chrono::seconds(1)))));
    }
  }

 private:
  template <class Greeted>
  static void hear(Link caller, Greeted& greeted) {
    std::vector<std::byte> bytes;
    try {
      bytes = caller.connection.receive(Deadline::after({}));
    } catch (const Error&) {
      return;  // it has gone, or sent what no rank sends
    }
    greeted(std::move(caller), bytes);
  }

  /// A process of another user is no rank.
  void take_in(Link caller) {
    if (caller.connection.peer_credentials().uid == ::geteuid()) {
      if (callers_.size() >= most_) {
        callers_.erase(callers_.begin());
      }
      callers_.push_back(std::move(caller));
    }
  }

  net::UnixListener listener_;
  const std::size_t most_;
  std::vector<Link> callers_;
  std::vector<pollfd> waiting_;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
