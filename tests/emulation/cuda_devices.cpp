/// @file
/// CUDA runtime emulation: device count, selection, properties and limits.

#include <cuda.h>

#include <cstdio>
#include <cstring>

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
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return call("cudaGetDevice", [&] {
    *device = current_device();
    return device_count() == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return call("cudaDeviceGetAttribute", [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    switch (static_cast<int>(attribute)) {
      case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1:
      case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1:
      case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR: *value = has_stream_memory_operations() ? 1 : 0; break;
      case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
      case cudaDevAttrUnifiedAddressing:
      case cudaDevAttrHostRegisterSupported:
      case cudaDevAttrAsyncEngineCount: *value = 1; break;
      case cudaDevAttrMultiProcessorCount: *value = 4; break;
      case cudaDevAttrPciBusId: *value = uuid_number(device) + 1; break;
      default: *value = 0; break;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call("cudaGetDeviceProperties", [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    *properties = cudaDeviceProp{};
    std::snprintf(properties->name, sizeof properties->name, "%s", description);
    std::snprintf(properties->uuid.bytes, sizeof properties->uuid.bytes, "emulated-%d", uuid_number(device));
    properties->totalGlobalMem = device_memory_bytes();
    properties->major = 9;
    properties->multiProcessorCount = 4;
    properties->asyncEngineCount = 1;
    properties->unifiedAddressing = 1;
    properties->pciBusID = uuid_number(device) + 1;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  return call("cudaDeviceGetPCIBusId", [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    if (bytes < 13) return cudaErrorInvalidValue;
    std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02X:00.0", uuid_number(device) + 1);
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

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return call("cudaDeviceCanAccessPeer", [&] {
    *can = device != peer ? 1 : 0;
    return exists(device) && exists(peer) ? cudaSuccess : cudaErrorInvalidDevice;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [&] {
    count_host_wait();
    count_device_wait();
    block_until_device_complete(current_device());
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return call("cudaRuntimeGetVersion", [&] {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return call("cudaDriverGetVersion", [&] {
    *version = CUDA_VERSION;
    return cudaSuccess;
  });
}
