#pragma once
/// @file
/// How a wait of a coroutine ended.

#include <cstdint>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Why a suspended coroutine was resumed; `ready` wins where both hold.
enum class WakeReason : std::uint8_t { ready = 1, timed_out };

}  // namespace DTRAIN_NAMESPACE::async
