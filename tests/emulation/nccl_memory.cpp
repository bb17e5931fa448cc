/// @file
/// Calls that allocate memory for NCCL and register it.

#include "api.hpp"
#include "copy.hpp"
#include "device_memory.hpp"
#include "emulation.hpp"
#include "group.hpp"

using namespace emulation;

namespace {

/// What is registered, and with which communicator, until it is deregistered or that has ended.
struct Registered {
  std::mutex mutex;
  std::vector<std::pair<const Communicator*, const void*>> all;
};
Registered& known() {
  static auto* const only = new Registered;
  return *only;
}
std::atomic<int> mistakes{0};

void note_registered(ncclComm_t communicator, const void* memory) {
  const std::lock_guard lock(known().mutex);
  known().all.emplace_back(communicator_of(communicator), memory);
}

/// A device that still runs something may be using the memory.
ncclResult_t deregistered(const char* function, ncclComm_t communicator, const void* handle) {
  if (const ncclResult_t refused = nccl_admitted(function)) return refused;
  if (communicator == nullptr || handle == nullptr) return ncclInvalidArgument;
  if (!is_device_complete(communicator_of(communicator)->device())) mistakes.fetch_add(1);
  const std::lock_guard lock(known().mutex);
  const std::pair<const Communicator*, const void*> wanted(communicator_of(communicator), handle);
  return std::erase(known().all, wanted) != 0 ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t registered(const char* function, ncclComm_t communicator, const void* buffer, std::size_t bytes) {
  if (const ncclResult_t refused = nccl_admitted(function)) return refused;
  if (communicator == nullptr || !is_device_address(buffer)) return ncclInvalidArgument;
  return end_of(buffer, bytes).address != nullptr ? ncclSuccess : ncclInvalidArgument;
}

}  // namespace

int emulation::mistakes_with_registered_memory() {
  return mistakes.load();
}
void emulation::forget_mistakes_with_memory() noexcept {
  mistakes.store(0);
}
void emulation::forget_registrations(const Communicator& communicator) noexcept {
  const std::lock_guard lock(known().mutex);
  std::erase_if(known().all, [&](const auto& each) { return each.first == &communicator; });
}

ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
  if (const ncclResult_t refused = nccl_admitted("ncclMemAlloc")) return refused;
  if (pointer == nullptr || bytes == 0) return ncclInvalidArgument;
  count_device_wait();
  *pointer = allocate_device_memory(bytes, current_device());
  return *pointer == nullptr ? ncclUnhandledCudaError : ncclSuccess;
}

ncclResult_t ncclMemFree(void* pointer) {
  if (const ncclResult_t refused = nccl_admitted("ncclMemFree")) return refused;
  if (pointer == nullptr) return ncclSuccess;
  if (!is_device_address(pointer)) return ncclInvalidArgument;
  {
    const std::lock_guard lock(known().mutex);
    for (const auto& each : known().all) {
      if (each.second == pointer) mistakes.fetch_add(1);
    }
  }
  count_device_wait();
  block_until_device_complete(device_of(pointer));
  return free_device_memory(pointer) ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclCommRegister(const ncclComm_t communicator, void* buffer, size_t bytes, void** handle) {
  const ncclResult_t result = registered("ncclCommRegister", communicator, buffer, bytes);
  *handle = result == ncclSuccess ? buffer : nullptr;
  if (result == ncclSuccess) note_registered(communicator, buffer);
  return result;
}

ncclResult_t ncclCommDeregister(const ncclComm_t communicator, void* handle) {
  return deregistered("ncclCommDeregister", communicator, handle);
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
ncclResult_t ncclCommWindowRegister(ncclComm_t communicator, void* buffer, size_t bytes, ncclWindow_t* window, int) {
  *window = nullptr;
  if (const ncclResult_t refused = registered("ncclCommWindowRegister", communicator, buffer, bytes)) return refused;
  Communicator& owner = *communicator_of(communicator);
  const InsideCall inside(owner);
  if (owner.polled() != ncclSuccess) return ncclInvalidArgument;
  note_registered(communicator, buffer);
  owner.begin_window(buffer, std::atomic_ref(*window));
  if (owner.is_blocking()) owner.block_while_in_progress();
  return ncclSuccess;  // of a non-blocking one it is in progress (src/dev_runtime.cc)
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t communicator, ncclWindow_t window) {
  return deregistered("ncclCommWindowDeregister", communicator, window);
}
#endif
