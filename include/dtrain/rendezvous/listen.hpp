#pragma once
/// @file
/// Where rank 0 listens for the others of its job.

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/net/listener.hpp"
#include "dtrain/net/resolve.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

/// Nothing where the address is not one of this machine's. @throws Error (posix) with a sentence about the port
inline std::optional<net::Listener> try_listen(async::EventLoop& loop, const std::string& host,
                                               const std::optional<net::Endpoint>& endpoint, std::uint16_t port) {
  try {
    return endpoint ? net::Listener::bind(loop, *endpoint) : net::Listener::bind_any(loop, port);
  } catch (const Error& error) {
    if (error.code().value() == EADDRNOTAVAIL && endpoint) {
      return std::nullopt;
    }
    if (error.code().value() == EADDRINUSE) {
      throw Error(error.code(),
                  "port " + std::to_string(port) + " on " + host +
                      " is in use by another program, and rank 0 is to open the job's store there; choose " +
                      "another with MASTER_PORT or --master-port");
    }
    throw;
  }
}

}  // namespace detail

/// Listens at `host` where that is this machine's: at the loopback address if it is written as one; else at the first
/// of its addresses that is local and not loopback; else at all interfaces, because a name may mean the loopback
/// address on this machine and another one on the others.
/// @throws Error (posix): "port 29500 on host-a is in use ..."; Error (refused) for a host that does not resolve
inline async::Task<net::Listener> listen_for_ranks(async::EventLoop& loop, std::string host, std::uint16_t port,
                                                   Deadline deadline) {
  const net::Resolution resolution = co_await net::resolve(loop, host, port, deadline);
  if (resolution.endpoints.empty()) {
    throw net::unresolved_error(host, resolution.reason);
  }
  const bool written_as_loopback =
      host == "localhost" || (net::Endpoint::from_numeric(host, port) && resolution.endpoints.front().is_loopback());
  for (const net::Endpoint& endpoint : resolution.endpoints) {
    if (endpoint.is_loopback() && !written_as_loopback) {
      continue;
    }
    std::optional<net::Listener> listener = detail::try_listen(loop, host, endpoint, port);
    if (listener) {
      co_return *std::move(listener);
    }
  }
  co_return *detail::try_listen(loop, host, std::nullopt, port);
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
