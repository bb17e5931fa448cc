/// @file
/// Copies and memsets. Copies of pageable memory do what CUDA says: to a device, the host's bytes are taken before the
/// call returns; from a device, the call returns when they are there.

#include "api.hpp"
#include "capture.hpp"
#include "copy.hpp"
#include "device_memory.hpp"
#include "pinned_memory.hpp"
#include "stream.hpp"

namespace emulation {

End end_of(const void* pointer, std::size_t bytes) noexcept {
  if (is_device_address(pointer)) return {End::Kind::device, shadow_of(pointer, bytes)};
  return {is_pinned(pointer) ? End::Kind::pinned : End::Kind::pageable, const_cast<void*>(pointer)};
}

bool is_direction(cudaMemcpyKind kind, const End& to, const End& from) noexcept {
  switch (kind) {
    case cudaMemcpyHostToHost: return !to.is_device() && !from.is_device();
    case cudaMemcpyHostToDevice: return to.is_device() && !from.is_device();
    case cudaMemcpyDeviceToHost: return !to.is_device() && from.is_device();
    case cudaMemcpyDeviceToDevice: return to.is_device() && from.is_device();
    case cudaMemcpyDefault: return true;
  }
  return false;
}

}  // namespace emulation

using namespace emulation;

namespace {

using Copy = std::pair<void*, const void*>;

cudaError_t resolve(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, End& target, End& source) {
  if (bytes == 0) return cudaSuccess;
  target = end_of(to, bytes);
  source = end_of(from, bytes);
  if (target.address == nullptr || source.address == nullptr) return cudaErrorInvalidValue;
  if (!is_direction(kind, target, source)) return cudaErrorInvalidMemcpyDirection;
  if (source.is_device() && !target.is_device()) count_bytes_to_host(bytes);
  return cudaSuccess;
}

cudaError_t batch(void* const* to, const void* const* from, const std::size_t* sizes, std::size_t count,
                  const cudaMemcpyAttributes* attributes, const std::size_t* first_of, std::size_t attribute_count,
                  cudaStream_t stream) {
  Stream* const where = stream_of(stream);
  if (where == nullptr || is_default_stream(stream)) return cudaErrorInvalidValue;  // both default streams
  if (count == 0 || attribute_count == 0 || attribute_count > count || first_of[0] != 0) return cudaErrorInvalidValue;
  for (std::size_t i = 0; i < attribute_count; ++i) {
    if (first_of[i] >= count || (i > 0 && first_of[i] <= first_of[i - 1])) return cudaErrorInvalidValue;
    if (attributes[i].srcAccessOrder != cudaMemcpySrcAccessOrderStream) return cudaErrorNotSupported;
  }
  struct Sized {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  std::vector<Sized> copies;
  for (std::size_t i = 0; i < count; ++i) {
    End target{};
    End source{};
    const cudaError_t error = resolve(to[i], from[i], sizes[i], cudaMemcpyDefault, target, source);
    if (error != cudaSuccess || sizes[i] == 0) return cudaErrorInvalidValue;
    if (target.kind == End::Kind::pageable || source.kind == End::Kind::pageable) return cudaErrorNotSupported;
    copies.push_back({target.address, source.address, sizes[i]});
  }
  where->submit([copies = std::move(copies)] {
    return [copies] {
      for (const Sized& copy : copies)
        std::memcpy(copy.to, copy.from, copy.bytes);
    };
  });
  return cudaSuccess;
}

}  // namespace

// On the default stream, which no other stream of the emulation synchronises with: all are non-blocking.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return call("cudaMemcpy", [&] {
    End target{};
    End source{};
    const cudaError_t error = resolve(to, from, bytes, kind, target, source);
    if (error != cudaSuccess || bytes == 0) return error;
    count_host_wait();
    block_until_default_stream_complete(current_device());
    std::memmove(target.address, source.address, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return call("cudaMemcpyAsync", stream, [&] {
    Stream* const where = stream_of(stream);
    if (where == nullptr) return cudaErrorInvalidResourceHandle;
    End target{};
    End source{};
    const cudaError_t error = resolve(to, from, bytes, kind, target, source);
    if (error != cudaSuccess || bytes == 0) return error;
    const bool is_pageable = target.kind == End::Kind::pageable || source.kind == End::Kind::pageable;
    if (is_pageable && where->capture() != nullptr) {
      where->capture()->invalidate();
      return cudaErrorStreamCaptureUnsupported;
    }
    if (source.kind == End::Kind::pageable) {
      const auto* const bytes_of = static_cast<const std::byte*>(source.address);
      where->enqueue([to_address = target.address, taken = std::vector<std::byte>(bytes_of, bytes_of + bytes)] {
        std::memcpy(to_address, taken.data(), taken.size());
      });
    } else {
      where->submit([copy = Copy(target.address, source.address), bytes] {
        return [copy, bytes] { std::memmove(copy.first, copy.second, bytes); };
      });
    }
    if (target.kind == End::Kind::pageable) {
      count_host_wait();
      where->block_until_complete();
    }
    return cudaSuccess;
  });
}

#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* sizes, size_t count,
                                 cudaMemcpyAttributes* attributes, size_t* first_of, size_t attribute_count,
                                 cudaStream_t stream) {
  return call("cudaMemcpyBatchAsync",
              [&] { return batch(to, from, sizes, count, attributes, first_of, attribute_count, stream); });
}
#elif CUDART_VERSION >= 12080
cudaError_t cudaMemcpyBatchAsync(void** to, void** from, size_t* sizes, size_t count, cudaMemcpyAttributes* attributes,
                                 size_t* first_of, size_t attribute_count, size_t* failed, cudaStream_t stream) {
  return call("cudaMemcpyBatchAsync", [&] {
    if (failed != nullptr) *failed = SIZE_MAX;
    return batch(to, from, sizes, count, attributes, first_of, attribute_count, stream);
  });
}
#endif

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  return call("cudaMemset", [&] {
    const End target = end_of(pointer, bytes);
    if (target.address == nullptr || target.kind == End::Kind::pageable) return cudaErrorInvalidValue;
    block_until_default_stream_complete(current_device());
    std::memset(target.address, value, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync", stream, [&] {
    Stream* const where = stream_of(stream);
    if (where == nullptr) return cudaErrorInvalidResourceHandle;
    const End target = end_of(pointer, bytes);
    if (target.address == nullptr || target.kind == End::Kind::pageable) return cudaErrorInvalidValue;
    where->submit([address = target.address, value, bytes] {
      return [address, value, bytes] { std::memset(address, value, bytes); };
    });
    return cudaSuccess;
  });
}
