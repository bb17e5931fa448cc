#pragma once
/// @file
/// What communicators take whose ranks are on several hosts: NCCL's proxy serves their connections.

#include <cstddef>

namespace emulation {

/// The number of the host that set_devices_per_host gives a device of the machine; -1 where it has not been called.
int host_of(int physical_device) noexcept;

/// What a communicator takes in /dev/shm: a pool of 2048 operations of 232 bytes for each of up to 72 ranks of the host
/// (src/include/proxy.h, ncclProxyOpsPool).
constexpr std::size_t proxy_pool_bytes = std::size_t{2048} * 72 * 232;

/// False where the limit that a test has set does not leave so much.
bool take_shared_memory(std::size_t bytes) noexcept;
void give_back_shared_memory(std::size_t bytes) noexcept;

/// What limit_operations_in_flight says; 0 for none.
int most_operations_in_flight() noexcept;

}  // namespace emulation
