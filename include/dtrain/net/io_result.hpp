#pragma once
/// @file
/// IoResult: the result of reading or writing; expected outcomes are values.

#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::net {

/// How a send or receive ended. These outcomes are expected, so they are values and not exceptions.
enum class IoStatus : std::uint8_t {
  ok = 1,
  closed,     ///< the connection has ended: closed by the peer, reset, or given up by the system
  timed_out,  ///< the deadline came first
};

/// Result of one send or receive.
struct IoResult {
  IoStatus status = IoStatus::ok;
  std::size_t bytes = 0;  ///< transferred, also if the status is not ok
  int error = 0;          ///< the errno that ended the connection; 0 if the peer closed it in order

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
