#pragma once
/// @file
/// WakeReason: why a coroutine's wait ended.

#include <cstdint>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Why a suspended coroutine was resumed; `ready` wins if both hold.
enum class WakeReason : std::uint8_t { ready = 1, timed_out };

}  // namespace DTRAIN_NAMESPACE::async
