#pragma once
/// @file
/// A connection between a rank and its store: how soon a dead one is noticed, and a place that does not move.

#include <chrono>
#include <utility>

#include "dtrain/net/frame.hpp"
#include "dtrain/rendezvous/limits.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Lets the system notice a host or a link that is gone: probes while nothing is sent, a bound while something is.
inline void watch_liveness(net::Connection& connection, std::chrono::milliseconds unacknowledged) {
  connection.set_keepalive(std::chrono::seconds(10), std::chrono::seconds(5), 3);
  connection.set_user_timeout(unacknowledged);
}

/// The rank's end of a connection.
struct Link {
  explicit Link(net::Connection connected)
      : connection(std::move(connected)), reader(connection, max_frame_bytes), writer(connection, max_frame_bytes) {
    watch_liveness(connection, std::chrono::seconds(60));
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  net::Connection connection;
  net::FrameReader reader;
  net::FrameWriter writer;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
