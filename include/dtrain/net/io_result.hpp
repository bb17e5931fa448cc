#pragma once
/// @file
/// How reading or writing ended: expected outcomes as values.

#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::net {

/// How moving bytes ended. None of these is an exception: they are expected, and the caller knows what it was doing.
enum class IoStatus : std::uint8_t {
  ok = 1,
  closed,     ///< the connection is gone: closed by the peer, reset, or given up by the system
  timed_out,  ///< the deadline came first
};

/// The end of one send or receive.
struct IoResult {
  IoStatus status = IoStatus::ok;
  std::size_t bytes = 0;  ///< moved, also where the status is not ok
  int error = 0;          ///< the errno that ended the connection; 0 where the peer closed it in order

  bool ok() const noexcept { return status == IoStatus::ok; }

  /// "connection closed by the peer", "Connection reset by peer", "the deadline passed".
  std::string reason() const {
    switch (status) {
      case IoStatus::ok: return "ok";
      case IoStatus::timed_out: return "the deadline passed";
      case IoStatus::closed: break;
    }
    return error == 0 ? "connection closed by the peer" : std::generic_category().message(error);
  }
};

}  // namespace DTRAIN_NAMESPACE::net
