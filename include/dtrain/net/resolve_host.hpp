#pragma once
/// @file
/// resolve(): a host name's addresses, with a deadline, which getaddrinfo lacks. Backoff: growing delays between
/// attempts.

#include <netdb.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "dtrain/async/events.hpp"
#include "dtrain/async/thread.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/socket_address.hpp"

namespace DTRAIN_NAMESPACE::net {

/// Delays between attempts.
struct Backoff {
  std::chrono::milliseconds first{10};
  std::chrono::milliseconds longest{1000};
  std::chrono::milliseconds attempt_timeout{5000};  ///< limit for an address that does not answer at all
  bool connects_once = false;                       ///< each address is tried once; only the name is asked for again
  /// Gets the reason of each failure that another attempt follows. Its exception ends the attempts.
  std::function<void(std::string why)> on_retry = [](const std::string&) {};
};

/// Addresses in the order to try them, or the reason for their absence.
struct Resolution {
  std::vector<SocketAddress> addresses;
  std::string reason;  ///< empty if there are addresses
};

/// The Error for a host that does not resolve.
inline Error unresolved_error(const std::string& host, const std::string& reason) {
  return {Errc::refused, format_text("resolving host '{}': {}; set MASTER_ADDR (or --master-addr) to a name or address "
                                     "that this machine can reach",
                                     {host, reason})};
}

/// Why an unresolved host name can never resolve; empty if it may resolve later. RFC 6761, 6.4 reserves .invalid.
inline std::string invalid_name_reason(const std::string& host) {
  if (host.empty() || host.size() > 255 || host.find('\0') != std::string::npos) {
    return "a host name has 1 to 255 characters";
  }
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto may_be = [&](char c) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c & 0x80) != 0;  // or a byte of one
    return is_letter || is_digit(c) || c == '-' || c == '_' || c == '.';
  };
  if (!std::all_of(host.begin(), host.end(), may_be)) {
    return "a host name has letters, digits, '-', '_' and '.' alone";
  }
  if (host.front() == '.' || host.find("..") != std::string::npos) {
    return "no part of a host name between its dots is empty";
  }
  if (host.ends_with(".invalid")) {
    return "no name that ends in .invalid exists";
  }
  if (host.find('.') != std::string::npos &&
      std::all_of(host.begin(), host.end(), [&](char c) { return c == '.' || is_digit(c); })) {
    return "it is no address, and a name does not have digits alone";
  }
  return {};
}

namespace detail {

/// The result of getaddrinfo. Blocking: for as long as the system's resolver takes.
inline Resolution query_system(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int result = ::getaddrinfo(host.c_str(), nullptr, &hints, &first);
  const int number = errno;
  Resolution resolution;
  if (result != 0) {
    resolution.reason = result == EAI_SYSTEM ? std::generic_category().message(number) : ::gai_strerror(result);
    return resolution;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(first, &::freeaddrinfo);
  for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
    if (const auto address = SocketAddress::from_system(entry->ai_addr, entry->ai_addrlen)) {
      resolution.addresses.push_back(address->with_port(port));
    }
  }
  if (resolution.addresses.empty()) {
    resolution.reason = "it has no IPv4 or IPv6 address";
  }
  return resolution;
}

/// State shared by the helper thread and the waiting coroutine; the last owner frees it.
struct ResolveRequest {
  explicit ResolveRequest(async::EventLoop& home) : loop(&home), done(home) {}

  std::mutex mutex;
  async::EventLoop* loop;        ///< exists until the coroutine, under the mutex, makes this null
  Resolution found;              ///< the loop's thread only
  async::ManualResetEvent done;  ///< the loop's thread only
};

/// Resolves numeric hosts and "localhost", and rejects what is no name. @returns false if the system has to be asked
inline bool resolve_alone(const std::string& host, std::uint16_t port, Resolution& resolution) {
  if (const auto numeric = SocketAddress::from_numeric(host, port)) {
    resolution.addresses.push_back(*numeric);
  } else if (host == "localhost") {
    resolution.addresses = {SocketAddress::loopback_v4(port), SocketAddress::loopback_v6(port)};
  } else if (host.empty() || host.size() > 255 || host.find('\0') != std::string::npos) {
    resolution.reason = invalid_name_reason(host);
  } else {
    return false;
  }
  return true;
}

inline std::shared_ptr<ResolveRequest> start_resolve_request(async::EventLoop& loop, std::string host,
                                                             std::uint16_t port) {
  auto request = std::make_shared<ResolveRequest>(loop);
  const auto ask = [request, host = std::move(host), port] {
    try {
      auto deliver = [request, found = query_system(host, port)]() mutable {
        if (request->loop != nullptr) {
          request->found = std::move(found);
          request->done.set();
        }
      };
      const std::lock_guard lock(request->mutex);
      if (request->loop != nullptr) {
        request->loop->post(std::move(deliver));
      }
    } catch (...) {  // out of memory: the coroutine's deadline ends the wait
    }
  };
  async::start_thread("a thread to resolve a host name", ask).detach();
  return request;
}

/// Reports that the name is resolved again.
/// @throws Error (refused) for an invalid name, or if it is too late for another attempt
inline void note_unresolved(const std::string& host, const std::string& reason, Deadline::Clock::time_point begin,
                            Deadline::Clock::time_point last, const Backoff& backoff) {
  const std::string why_none = invalid_name_reason(host);
  if (!why_none.empty()) {
    throw unresolved_error(host, why_none);
  }
  const Deadline::Clock::time_point now = Deadline::Clock::now();
  const Error error = unresolved_error(host, format_text("{} (tried for {})", {reason, duration_text(now - begin)}));
  if (now >= last) {
    throw error;
  }
  backoff.on_retry(error.what());
}

}  // namespace detail

/// Returns the addresses of `host`. Numeric hosts and "localhost" resolve at once. For others a helper thread calls the
/// system's resolver; it runs on alone after the deadline or the task's destruction.
/// @throws Error (posix) if no thread can be started
inline async::Task<Resolution> resolve(async::EventLoop& loop, std::string host, std::uint16_t port,
                                       Deadline deadline) {
  Resolution resolution;
  if (detail::resolve_alone(host, port, resolution)) {
    co_return std::move(resolution);
  }
  struct DetachOnExit {
    ~DetachOnExit() {
      const std::lock_guard lock(request->mutex);
      request->loop = nullptr;
    }
    std::shared_ptr<detail::ResolveRequest> request;
  };
  const DetachOnExit scope{detail::start_resolve_request(loop, std::move(host), port)};
  const async::WakeReason ready = co_await scope.request->done.wait(deadline);
  if (ready == async::WakeReason::ready) {
    resolution = std::move(scope.request->found);
  } else {
    resolution.reason = "the name service did not answer in time";
  }
  co_return std::move(resolution);
}

/// Returns at least one address of `host`. Retries with growing delays, because a name may resolve later: the name of a
/// Kubernetes pod once the pod has an address.
/// @throws Error (refused) at the deadline, with the time spent, or at once for an invalid name
inline async::Task<std::vector<SocketAddress>> resolve_with_backoff(async::EventLoop& loop, std::string host,
                                                                    std::uint16_t port, Deadline deadline,
                                                                    Backoff backoff = {}) {
  const Deadline::Clock::time_point begin = Deadline::Clock::now();
  for (std::chrono::milliseconds delay = backoff.first;; delay = std::min(2 * delay, backoff.longest)) {
    async::Task<Resolution> request = resolve(loop, host, port, deadline);
    Resolution resolution = co_await std::move(request);
    if (!resolution.addresses.empty()) {
      co_return std::move(resolution.addresses);
    }
    detail::note_unresolved(host, resolution.reason, begin, deadline.instant() - delay, backoff);
    co_await loop.sleep_for(delay);
  }
}

}  // namespace DTRAIN_NAMESPACE::net
