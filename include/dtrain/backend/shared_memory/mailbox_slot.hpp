#pragma once
/// @file
/// MailboxSlot: descriptor of one message chunk in the sender's mailbox, until the receiver has copied it.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "dtrain/core/types/dtype.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A rank's maximum of chunks in flight, and the bytes of a chunk: two are written while two are read.
inline constexpr std::size_t mailbox_slots = 4;
inline constexpr std::size_t mailbox_slot_bytes = std::size_t{32} << 10;
/// Longer chunks are copied past the caches.
inline constexpr std::size_t mailbox_cached_bytes = std::size_t{8} << 10;

/// The sender fills a free slot and then sets `owner`; that rank reads it and frees it. Zeroed memory is a free slot.
struct alignas(64) MailboxSlot {
  std::atomic<std::uint32_t> owner{0};  ///< 1 + the receiving rank; 0: free
  DType dtype = DType::f32;
  std::uint64_t message = 0;  ///< key of the message from this sender to that receiver
  std::uint64_t offset = 0;   ///< of the chunk in the message, in bytes
  std::uint64_t count = 0;    ///< elements of the whole message
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
