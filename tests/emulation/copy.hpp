#pragma once
/// @file
/// Ends of copies, as addresses that a stream's thread may use.

#include <cuda_runtime_api.h>

#include <cstddef>

namespace emulation {

/// One end of a copy: pageable memory is the host's own, which the device reaches only through a copy of it.
struct End {
  enum class Kind { device, pinned, pageable };
  Kind kind;
  void* address;  // null where a device pointer names no allocation that is large enough

  bool is_device() const noexcept { return kind == Kind::device; }
};
End end_of(const void* pointer, std::size_t bytes) noexcept;

/// Whether the direction is what the two ends are.
bool is_direction(cudaMemcpyKind kind, const End& to, const End& from) noexcept;

}  // namespace emulation
