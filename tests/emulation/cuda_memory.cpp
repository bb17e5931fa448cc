/// @file
/// Calls that allocate memory and tell what a pointer is.

#include "api.hpp"
#include "capture.hpp"
#include "device_memory.hpp"
#include "pinned_memory.hpp"
#include "stream.hpp"

using namespace emulation;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return call("cudaMalloc", [&] {
    count_device_wait();
    if (pointer == nullptr) return cudaErrorInvalidValue;
    if (device_count() == 0) return cudaErrorNoDevice;
    if (const cudaError_t refused = refused_while_capturing()) return refused;
    *pointer = bytes == 0 ? nullptr : allocate_device_memory(bytes, current_device());
    return bytes != 0 && *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t cudaFree(void* pointer) {
  return call("cudaFree", [&] {
    count_device_wait();
    if (const cudaError_t refused = refused_while_capturing()) return refused;
    if (pointer == nullptr) return cudaSuccess;
    if (!is_device_address(pointer)) return cudaErrorInvalidValue;
    block_until_device_complete(device_of(pointer));  // as the real one does
    return free_device_memory(pointer) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return call("cudaMemGetInfo", [&] {
    *total = device_memory_bytes();
    *free = *total - allocated_device_bytes(current_device());
    return cudaSuccess;
  });
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  return call("cudaMallocAsync", stream, [&] {
    const Stream* const where = stream_of(stream);
    if (pointer == nullptr || where == nullptr || bytes == 0) return cudaErrorInvalidValue;
    if (where->capture() != nullptr) return cudaErrorNotSupported;  // here; the real one captures it
    *pointer = allocate_device_memory(bytes, where->device());
    return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return call("cudaFreeAsync", stream, [&] {
    Stream* const where = stream_of(stream);
    if (where == nullptr || !is_device_address(pointer) || shadow_of(pointer, 0) == nullptr)
      return cudaErrorInvalidValue;
    if (where->capture() != nullptr) return cudaErrorNotSupported;
    where->enqueue([pointer] { free_device_memory(pointer); });
    return cudaSuccess;
  });
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int) {
  return call("cudaHostAlloc", [&] {
    count_device_wait();
    if (pointer == nullptr) return cudaErrorInvalidValue;
    if (device_count() == 0) return cudaErrorNoDevice;
    if (const cudaError_t refused = refused_while_capturing()) return refused;
    *pointer = bytes == 0 ? nullptr : allocate_pinned_memory(bytes);
    return bytes != 0 && *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* pointer) {
  return call("cudaFreeHost", [&] {
    count_device_wait();
    if (pointer == nullptr) return cudaSuccess;
    if (!is_pinned(pointer)) return cudaErrorInvalidValue;
    block_until_device_complete(current_device());
    return free_pinned_memory(pointer) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned int) {
  return call("cudaHostRegister", [&] {
    count_device_wait();
    if (pointer == nullptr || bytes == 0 || is_device_address(pointer)) return cudaErrorInvalidValue;
    return register_pinned_memory(pointer, bytes) ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
  });
}

cudaError_t cudaHostUnregister(void* pointer) {
  return call("cudaHostUnregister", [&] {
    count_device_wait();
    return unregister_pinned_memory(pointer) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return call("cudaPointerGetAttributes", [&] {
    if (attributes == nullptr) return cudaErrorInvalidValue;
    *attributes = cudaPointerAttributes{};
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;  // cudaInvalidDeviceId
    void* const address = const_cast<void*>(pointer);
    if (is_device_address(pointer) && shadow_of(pointer, 0) != nullptr) {
      attributes->type = cudaMemoryTypeDevice;
      attributes->device = device_of(pointer);
      attributes->devicePointer = address;
    } else if (is_pinned(pointer)) {
      attributes->type = cudaMemoryTypeHost;
      attributes->device = current_device();
      attributes->devicePointer = attributes->hostPointer = address;
    } else {
      attributes->hostPointer = address;
    }
    return cudaSuccess;
  });
}
