#pragma once
/// @file
/// LinkCost: latency and bandwidth of messages between ranks (alpha and beta).

#include <cstddef>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// A message of n bytes takes alpha + n beta seconds. Source: R. Hockney, "The communication challenge for MPP: Intel
/// Paragon and Meiko CS-2", Parallel Computing 20 (1994).
struct LinkCost {
  double message_seconds = 0;  ///< alpha
  double byte_seconds = 0;     ///< beta

  constexpr double seconds(double messages, double bytes) const noexcept {
    return messages * message_seconds + bytes * byte_seconds;
  }
  bool operator==(const LinkCost&) const = default;
};

}  // namespace DTRAIN_NAMESPACE::backend
