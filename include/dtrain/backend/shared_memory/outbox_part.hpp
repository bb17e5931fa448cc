#pragma once
/// @file
/// One place of a rank's outbox: a piece of a message to one peer, until that peer takes it.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "dtrain/core/dtype.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Pieces that a rank can have under way, and the bytes of one: two are filled while two are taken.
inline constexpr std::size_t outbox_parts = 4;
inline constexpr std::size_t outbox_part_bytes = std::size_t{32} << 10;

/// The sender writes it while it is free and then sets `owner`; that rank reads it and frees it. Zeroed memory is a
/// free one.
struct alignas(64) OutboxPart {
  std::atomic<std::uint32_t> owner{0};  ///< 1 + the rank that it is for; 0: free
  DType dtype = DType::f32;
  std::uint64_t message = 0;  ///< 1, 2, ... from this sender to that receiver
  std::uint64_t offset = 0;   ///< of the piece in the message, in bytes
  std::uint64_t count = 0;    ///< elements of the whole message
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
