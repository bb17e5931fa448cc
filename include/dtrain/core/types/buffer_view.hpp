#pragma once
/// @file
/// BufferView, ConstBufferView: non-owning views of contiguous elements, the operands of collectives. Device: kind and
/// index. StreamHandle: a stream's native handle.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// The host, or a GPU with CUDA.
/// @ingroup views
enum class DeviceKind : std::uint8_t { host = 1, cuda };

/// A device. The host is always index 0.
/// @ingroup views
struct Device {
  DeviceKind kind = DeviceKind::host;
  std::int32_t index = 0;  ///< CUDA's number among the devices visible to this process

  friend constexpr bool operator==(const Device&, const Device&) = default;
};

/// "host", "cuda:1".
inline std::string to_string(Device device) {
  return device.kind == DeviceKind::host ? std::string("host") : "cuda:" + std::to_string(device.index);
}

/// Writable view of `count` elements of `dtype` at `data`. Lifetime: the memory outlives all operations on it.
/// @ingroup views
struct BufferView {
  std::byte* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::f32;
  Device device{};

  constexpr std::size_t bytes() const noexcept { return count * size_bytes(dtype); }
};

/// Read-only view of elements. Lifetime: as BufferView.
/// @ingroup views
struct ConstBufferView {
  const std::byte* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::f32;
  Device device{};

  constexpr ConstBufferView() noexcept = default;
  constexpr ConstBufferView(const std::byte* source, std::size_t elements, DType type, Device where = {}) noexcept
      : data(source), count(elements), dtype(type), device(where) {}
  // NOLINTNEXTLINE(google-explicit-constructor): writable memory is readable.
  constexpr ConstBufferView(const BufferView& view) noexcept
      : data(view.data), count(view.count), dtype(view.dtype), device(view.device) {}

  constexpr std::size_t bytes() const noexcept { return count * size_bytes(dtype); }
};

/// View of a span of host memory, which is read-only for a span of const elements.
/// @ingroup views
template <Element T>
BufferView buffer_view(std::span<T> values) noexcept {
  return {reinterpret_cast<std::byte*>(values.data()), values.size(), dtype_of<T>::value, {}};
}
template <Element T>
ConstBufferView buffer_view(std::span<const T> values) noexcept {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size(), dtype_of<T>::value, {}};
}

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
