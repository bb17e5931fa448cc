/// @file
/// CUDA runtime emulation: device count, selection, properties and limits.

#include <cuda.h>

#include "api.hpp"
#include "device_memory.hpp"
#include "emulation.hpp"
#include "stream.hpp"

using namespace emulation;

namespace {

bool exists(int device) {
  return device >= 0 && device < device_count();
}

}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  return call("cudaGetDeviceCount", [&] {
    *count = device_count();
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&] {
    if (!exists(device)) return device_count() == 0 ? cudaErrorNoDevice : cudaErrorInvalidDevice;
    set_current_device(device);
    make_context(device);
    return is_broken(device) ? cudaErrorIllegalAddress : cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return call("cudaGetDevice", [&] {
    *device = current_device();
    return device_count() == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call("cudaGetDeviceProperties", [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    *properties = cudaDeviceProp{};
    std::snprintf(properties->name, sizeof properties->name, "%s", description);
    std::snprintf(properties->uuid.bytes, sizeof properties->uuid.bytes, "emulated-%d", physical_device(device));
    properties->totalGlobalMem = device_memory_bytes();
    properties->major = 9;
    properties->multiProcessorCount = 4;
    properties->asyncEngineCount = 1;
    properties->unifiedAddressing = 1;
    properties->pciBusID = physical_device(device) + 1;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  return call("cudaDeviceGetPCIBusId", [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    if (bytes < 13) return cudaErrorInvalidValue;
    std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02X:00.0", physical_device(device) + 1);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call("cudaDeviceGetStreamPriorityRange", [&] {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [&] {
    count_host_wait();
    count_device_wait();
    block_until_device_complete(current_device());
    return is_broken(current_device()) ? cudaErrorIllegalAddress : cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return call("cudaRuntimeGetVersion", [&] {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}
