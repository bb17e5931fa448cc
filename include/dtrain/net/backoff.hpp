#pragma once
/// @file
/// How a try that may succeed later is repeated.

#include <chrono>
#include <functional>
#include <string>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::net {

/// The pauses between tries, and who hears of those that failed.
struct Backoff {
  std::chrono::milliseconds first{10};
  std::chrono::milliseconds longest{1000};
  std::chrono::milliseconds one_try{5000};                   ///< for an address that does not answer at all
  std::function<void(const std::string& why)> on_failure{};  ///< a try failed, and there will be another; a sentence
};

}  // namespace DTRAIN_NAMESPACE::net
