#pragma once
/// @file
/// StatusListener of a JobServer: gives what the ranks are doing to processes of the same user on this host.

#include <sys/types.h>

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/async/task.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/unix_socket.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Prefix of the abstract Unix sockets' names; a process id follows.
inline constexpr const char* status_socket_prefix = "dtrain-status-";

inline std::string status_socket_name(pid_t process) {
  return format_text("{}{}", {status_socket_prefix, process});
}

/// Each query gets the lines, a message each, and then the end of the connection. Lines that its socket does not take
/// at once are dropped. Lifetime: the loop outlives it. Threads: the loop's.
class StatusListener {
 public:
  using Lines = std::function<std::vector<std::string>()>;

  StatusListener(async::EventLoop& loop, Lines lines)
      : loop_(loop),
        lines_(std::move(lines)),
        serving_(loop.spawn(serve(), [](const std::exception_ptr&) {})) {}  // then nobody is answered
  StatusListener(const StatusListener&) = delete;
  StatusListener& operator=(const StatusListener&) = delete;

 private:
  async::Task<void> serve();
  bool listen() noexcept;
  bool answer() noexcept;

  async::EventLoop& loop_;
  Lines lines_;
  std::optional<net::UnixListener> listener_;
  async::TaskHandle serving_;  ///< last: destroyed before the members that it uses
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

#if DTRAIN_DEFINITIONS

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

DTRAIN_DEFINED async::Task<void> StatusListener::serve() {
  while (!listen()) {  // this process's job before this one has the name until it ends
    co_await loop_.sleep_for(std::chrono::seconds(1));
  }
  for (;;) {
    co_await loop_.readable(listener_->descriptor(), Deadline::unbounded("a query may come as long as the job lives"));
    if (!answer()) co_await loop_.sleep_for(std::chrono::milliseconds(100));
  }
}

DTRAIN_DEFINED bool StatusListener::listen() noexcept {
  try {
    listener_.emplace(status_socket_name(::getpid()));
    return true;
  } catch (...) {
    return false;
  }
}

/// @returns false for an error, which may come again at once
DTRAIN_DEFINED bool StatusListener::answer() noexcept {
  try {
    net::UnixConnection peer = listener_->accept(Deadline::after(std::chrono::milliseconds(0)));
    const uid_t user = peer.peer_credentials().uid;
    if (user != ::geteuid() && user != 0) return true;
    for (const std::string& line : lines_()) {
      if (!line.empty() && !peer.send_text(std::string_view(line).substr(0, net::UnixConnection::max_message_bytes)))
        break;
    }
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

#endif  // DTRAIN_DEFINITIONS
