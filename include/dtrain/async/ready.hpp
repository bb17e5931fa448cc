#pragma once
/// @file
/// How a wait of a coroutine ended.

#include <cstdint>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::async {

/// `ready` wins where both hold.
enum class Ready : std::uint8_t { ready = 1, timed_out };

}  // namespace DTRAIN_NAMESPACE::async
