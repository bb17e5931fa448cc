#pragma once
/// @file
/// StreamHandle: the type of a stream's device and native handle, for Ready and other interfaces without templates.

#include <cstdint>

#include "dtrain/core/types/buffer_view.hpp"

namespace DTRAIN_NAMESPACE {

/// Identifies the stream that produced a gradient. For the host `native` is null: the work is done when the handle is
/// passed. For CUDA it is the cudaStream_t. Lifetime: the stream outlives the step that it is passed to.
/// @ingroup streams
struct StreamHandle {
  Device device{};
  void* native = nullptr;

  friend constexpr bool operator==(const StreamHandle&, const StreamHandle&) = default;
};

/// Whether it is cudaStreamPerThread, another stream in every thread: the value 2 of the CUDA runtime's driver_types.h,
/// because code that is compiled apart from the program does not have CUDA's headers.
inline bool is_stream_of_each_thread(StreamHandle stream) noexcept {
  return stream.device.kind == DeviceKind::cuda && reinterpret_cast<std::uintptr_t>(stream.native) == 2;
}

}  // namespace DTRAIN_NAMESPACE
