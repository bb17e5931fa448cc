#pragma once
/// @file
/// Backoff: delays between retries.

#include <chrono>
#include <functional>
#include <string>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::net {

/// Delays between attempts, and a callback for failed ones.
struct Backoff {
  std::chrono::milliseconds first{10};
  std::chrono::milliseconds longest{1000};
  std::chrono::milliseconds attempt_timeout{5000};  ///< of one attempt, for an address that does not answer at all
  std::function<void(const std::string& why)>
      on_failure{};  ///< called when an attempt failed and another follows, with the reason
};

}  // namespace DTRAIN_NAMESPACE::net
