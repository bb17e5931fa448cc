#pragma once
/// @file
/// Page-aligned memory for host collectives. Scratch: a channel's working memory, which message_passing's Channel,
/// SharedMemory's all_reduce and Hierarchical own; allocate_zeroed(): the memory that Communicator allocates for a
/// rank.

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "dtrain/backend/allocation_table.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

namespace detail {

inline constexpr std::align_val_t page{4096};

struct FreePages {
  void operator()(std::byte* memory) const noexcept { ::operator delete(memory, page); }
};
using Pages = std::unique_ptr<std::byte, FreePages>;

/// Uninitialized. @throws std::bad_alloc
inline Pages allocate_pages(std::size_t bytes) {
  return Pages(static_cast<std::byte*>(::operator new(bytes, page)));
}

}  // namespace detail

/// Zeroed. @throws Error (out_of_memory)
HostAllocation allocate_zeroed(std::size_t bytes);

/// A channel's working memory, which grows on demand and is reused. Aligned to 4 KiB. Threads: as the operations of a
/// channel, one at a time.
class Scratch {
 public:
  /// At least `bytes` of uninitialized memory. Invalidates the result of earlier calls. @throws std::bad_alloc
  std::byte* at_least(std::size_t bytes);

  /// Forgets the memory without freeing it, because the transport may still write to it.
  void leak() noexcept {
    static_cast<void>(memory_.release());
    bytes_ = 0;
  }

 private:
  detail::Pages memory_;
  std::size_t bytes_ = 0;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED HostAllocation allocate_zeroed(std::size_t bytes) {
  detail::Pages memory;
  try {
    memory = detail::allocate_pages(bytes == 0 ? 1 : bytes);
  } catch (const std::bad_alloc&) {
    throw_error(Errc::out_of_memory, "no {} bytes of memory could be had{}", {bytes, limit_hint(ENOMEM)});
  }
  std::memset(memory.get(), 0, bytes);
  return {std::move(memory), bytes};
}

DTRAIN_DEFINED std::byte* Scratch::at_least(std::size_t bytes) {
  if (bytes > bytes_) {
    bytes_ = 0;
    memory_.reset();
    memory_ = detail::allocate_pages(bytes);
    bytes_ = bytes;
  }
  return memory_.get();
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
