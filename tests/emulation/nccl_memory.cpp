/// @file
/// Calls that allocate memory for NCCL and register it.

#include "api.hpp"
#include "copy.hpp"
#include "device_memory.hpp"
#include "group.hpp"

using namespace emulation;

namespace {

ncclResult_t registered(const char* function, ncclComm_t communicator, const void* buffer, std::size_t bytes) {
  if (const ncclResult_t refused = nccl_admitted(function)) return refused;
  if (communicator == nullptr || !is_device_address(buffer)) return ncclInvalidArgument;
  return end_of(buffer, bytes).address != nullptr ? ncclSuccess : ncclInvalidArgument;
}

}  // namespace

ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
  if (const ncclResult_t refused = nccl_admitted("ncclMemAlloc")) return refused;
  if (pointer == nullptr || bytes == 0) return ncclInvalidArgument;
  *pointer = allocate_device_memory(bytes, current_device());
  return *pointer == nullptr ? ncclUnhandledCudaError : ncclSuccess;
}

ncclResult_t ncclMemFree(void* pointer) {
  if (const ncclResult_t refused = nccl_admitted("ncclMemFree")) return refused;
  if (pointer == nullptr) return ncclSuccess;
  if (!is_device_address(pointer)) return ncclInvalidArgument;
  block_until_device_complete(device_of(pointer));
  return free_device_memory(pointer) ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclCommRegister(const ncclComm_t communicator, void* buffer, size_t bytes, void** handle) {
  const ncclResult_t result = registered("ncclCommRegister", communicator, buffer, bytes);
  *handle = result == ncclSuccess ? buffer : nullptr;
  return result;
}

ncclResult_t ncclCommDeregister(const ncclComm_t communicator, void* handle) {
  if (const ncclResult_t refused = nccl_admitted("ncclCommDeregister")) return refused;
  return communicator != nullptr && handle != nullptr ? ncclSuccess : ncclInvalidArgument;
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
ncclResult_t ncclCommWindowRegister(ncclComm_t communicator, void* buffer, size_t bytes, ncclWindow_t* window, int) {
  const ncclResult_t result = registered("ncclCommWindowRegister", communicator, buffer, bytes);
  *window = result == ncclSuccess ? static_cast<ncclWindow_t>(buffer) : nullptr;
  return result;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t communicator, ncclWindow_t window) {
  if (const ncclResult_t refused = nccl_admitted("ncclCommWindowDeregister")) return refused;
  return communicator != nullptr && window != nullptr ? ncclSuccess : ncclInvalidArgument;
}
#endif
