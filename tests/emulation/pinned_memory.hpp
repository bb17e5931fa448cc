#pragma once
/// @file
/// Host memory that devices reach: allocated by CUDA, or registered with it.

#include <cstddef>

namespace emulation {

/// Zeroed, aligned to a page; null where there is none.
void* allocate_pinned_memory(std::size_t bytes) noexcept;
bool free_pinned_memory(void* pointer) noexcept;

/// Whether it was not registered yet.
bool register_pinned_memory(void* pointer, std::size_t bytes) noexcept;
bool unregister_pinned_memory(void* pointer) noexcept;

/// Threads: any, without a lock.
bool is_pinned(const void* pointer) noexcept;

}  // namespace emulation
