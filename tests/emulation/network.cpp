/// @file
/// The limits that tests set for ranks on several hosts.

#include "network.hpp"

#include "api.hpp"
#include "emulation.hpp"

namespace emulation {
namespace {

std::atomic<int> devices_of_a_host{0};
std::atomic<int> operation_limit{0};
std::atomic<std::size_t> memory_limit{SIZE_MAX};
std::atomic<std::size_t> memory_taken{0};

}  // namespace

void set_devices_per_host(int devices) {
  devices_of_a_host.store(devices, std::memory_order_relaxed);
}
int host_of(int physical_device) noexcept {
  const int devices = devices_of_a_host.load(std::memory_order_relaxed);
  return devices == 0 ? -1 : physical_device / devices;
}

void limit_operations_in_flight(int most) {
  operation_limit.store(most, std::memory_order_relaxed);
}
int most_operations_in_flight() noexcept {
  return operation_limit.load(std::memory_order_relaxed);
}

void limit_shared_memory(std::size_t bytes) {
  memory_limit.store(bytes, std::memory_order_relaxed);
}
std::size_t shared_memory_taken() {
  return memory_taken.load(std::memory_order_relaxed);
}
bool take_shared_memory(std::size_t bytes) noexcept {
  if (memory_taken.fetch_add(bytes, std::memory_order_relaxed) + bytes <= memory_limit.load(std::memory_order_relaxed))
    return true;
  give_back_shared_memory(bytes);
  return false;
}
void give_back_shared_memory(std::size_t bytes) noexcept {
  memory_taken.fetch_sub(bytes, std::memory_order_relaxed);
}

void reset_network() noexcept {
  set_devices_per_host(0);
  limit_operations_in_flight(0);
  limit_shared_memory(SIZE_MAX);
}

}  // namespace emulation
