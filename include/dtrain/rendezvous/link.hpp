#pragma once
/// @file
/// A connection between a rank and its store with its frames, at a place that does not move.

#include <chrono>
#include <cstddef>
#include <utility>

#include "dtrain/net/frame.hpp"
#include "dtrain/rendezvous/limits.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

struct Link {
  /// @param bound of the frames that are read at first
  explicit Link(net::Connection connected, std::size_t bound = max_frame_bytes)
      : connection(std::move(connected)), reader(connection, bound), writer(connection, max_frame_bytes) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Lets the system notice a host or a path that is gone: probes while nothing is sent, a bound while something is.
  void watch(std::chrono::milliseconds liveness) {
    connection.set_keepalive(std::chrono::seconds(10), std::chrono::seconds(5), 3);
    connection.set_user_timeout(liveness);
  }

  net::Connection connection;
  net::FrameReader reader;
  net::FrameWriter writer;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
