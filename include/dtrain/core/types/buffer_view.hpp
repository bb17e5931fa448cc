#pragma once
/// @file
/// BufferView: non-owning view of contiguous elements, the operand of a collective.

#include <cstddef>
#include <span>

#include "dtrain/core/types/device.hpp"
#include "dtrain/core/types/dtype.hpp"

namespace DTRAIN_NAMESPACE {

/// Writable view of `count` elements of `dtype` at `data`. Lifetime: the memory outlives all operations on it.
struct BufferView {
  std::byte* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::f32;
  Device device{};

  constexpr std::size_t bytes() const noexcept { return count * size_bytes(dtype); }
};

/// Read-only view.
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

/// View of a span of host memory.
template <Element T>
BufferView buffer_view(std::span<T> values) noexcept {
  return {reinterpret_cast<std::byte*>(values.data()), values.size(), dtype_of<T>::value, {}};
}

template <Element T>
ConstBufferView buffer_view(std::span<const T> values) noexcept {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size(), dtype_of<T>::value, {}};
}

}  // namespace DTRAIN_NAMESPACE
