#pragma once
/// @file
/// Framed connection: a TCP connection with frame reader and writer; not movable.

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/framing/frame.hpp"
#include "dtrain/rendezvous/limits.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

struct FramedConnection {
  /// @param bound largest frame to read, until reader.raise_bound()
  explicit FramedConnection(net::Connection connected, std::size_t bound = max_frame_bytes)
      : tcp(std::move(connected)), reader(tcp, bound), writer(tcp, max_frame_bytes) {}
  FramedConnection(const FramedConnection&) = delete;
  FramedConnection& operator=(const FramedConnection&) = delete;

  /// Lets TCP detect a lost host or path: keepalive probes while idle, a user timeout while bytes are unacknowledged.
  void watch(std::chrono::milliseconds liveness) {
    tcp.set_keepalive(std::chrono::seconds(10), std::chrono::seconds(5), 3);
    tcp.set_user_timeout(liveness);
  }

  net::Connection tcp;
  net::FrameReader reader;
  net::FrameWriter writer;
};

/// Why a session counts as lost that has sent nothing for `time`.
inline std::string silence_text(Deadline::Clock::duration time) {
  return format_text(
      "it has sent nothing for {} (it is stopped or gets too little processor time, or its host or the way to it is "
      "gone; DTRAIN_LIVENESS_SECONDS is how long that may last)",
      {duration_text(time)});
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
