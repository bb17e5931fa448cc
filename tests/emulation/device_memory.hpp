#pragma once
/// @file
/// Device memory: an address that nobody can dereference, and a shadow a fixed way above it where the bytes are.

#include <cstddef>

namespace emulation {

/// Memory of a device, at an address that kills who reads or writes it; null where it does not fit.
void* allocate_device_memory(std::size_t bytes, int device) noexcept;

/// Whether `pointer` was one. Waits for nothing: work that still used the memory would die.
bool free_device_memory(void* pointer) noexcept;

/// Whether the address lies where device memory would. Threads: any, without a lock.
bool is_device_address(const void* pointer) noexcept;

/// The device of an address for which is_device_address.
int device_of(const void* pointer) noexcept;

/// The bytes of a device address; null unless all of `bytes` lie in one allocation. Threads: any, without a lock.
void* shadow_of(const void* pointer, std::size_t bytes) noexcept;

/// Of one device.
std::size_t device_memory_bytes() noexcept;
/// Of those, what this process has allocated.
std::size_t allocated_device_bytes(int device) noexcept;

}  // namespace emulation
