#pragma once
/// @file
/// TensorView: non-owning view of a program's contiguous tensor: address, shape, element type, device.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/buffer_view.hpp"

namespace DTRAIN_NAMESPACE {

/// The extents of a tensor, at most eight, outermost first. A shape without extents has one element.
/// @ingroup views
class Shape {
 public:
  static constexpr std::size_t max_rank = 8;

  constexpr Shape() noexcept = default;

  /// @throws Error (invalid_argument) for more than eight extents, a negative one, or a product beyond 2^60 (whose
  /// bytes still fit a size_t)
  Shape(std::initializer_list<std::int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}

  explicit Shape(std::span<const std::int64_t> extents);

  constexpr std::span<const std::int64_t> extents() const noexcept { return {extents_.data(), rank_}; }
  constexpr std::size_t element_count() const noexcept { return static_cast<std::size_t>(element_count_); }

  friend constexpr bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, max_rank> extents_{};
  std::size_t rank_ = 0;
  std::int64_t element_count_ = 1;
};

/// "[784, 256]".
std::string to_string(const Shape& shape);

/// A view of a tensor, row-major and contiguous. Lifetime: the memory outlives the view's last use.
/// @ingroup views
struct TensorView {
  std::byte* data = nullptr;
  Shape shape{};
  DType dtype = DType::f32;
  Device device{};

  constexpr BufferView flat() const noexcept { return {data, shape.element_count(), dtype, device}; }
  constexpr std::size_t bytes() const noexcept { return flat().bytes(); }

  /// The elements, for host code with a known type.
  /// @throws Error (invalid_argument) if T is not the view's element type or the memory is not the host's
  template <Element T>
  std::span<T> as() const {
    if (dtype_of<T>::value != dtype || device.kind != DeviceKind::host) {
      refuse_read_as(dtype_of<T>::value);
    }
    return {reinterpret_cast<T*>(data), shape.element_count()};
  }

 private:
  [[noreturn]] void refuse_read_as(DType other) const;
};

/// A view of host memory: `tensor_view(weights.data(), {784, 256})`.
/// @ingroup views
template <class T>
TensorView tensor_view(T* data, Shape shape) noexcept {
  static_assert(Element<T>,
                "dtrain: tensor_view takes float, double, std::int64_t, std::int32_t, std::uint8_t, dtrain::float16, "
                "dtrain::bfloat16 and types with a dtrain::dtype_of of their own, none of them const; keep a counter "
                "in a std::int64_t");
  return {reinterpret_cast<std::byte*>(data), shape, dtype_of<T>::value, {}};
}

/// A view with one extent of all elements of a std::span, and of a std::vector, std::array or T[n] that outlives it:
/// `tensor_view(weights)`.
/// @ingroup views
template <Element T, std::size_t Extent>
TensorView tensor_view(std::span<T, Extent> values) {
  return tensor_view(values.data(), {static_cast<std::int64_t>(values.size())});
}
template <class Values>
requires Element<typename decltype(std::span(std::declval<Values&>()))::element_type> TensorView
tensor_view(Values& values) {
  return tensor_view(std::span(values));
}

}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE {

DTRAIN_DEFINED Shape::Shape(std::span<const std::int64_t> extents) {
  if (extents.size() > max_rank) {
    throw_error(Errc::invalid_argument, "a shape has {} extents; at most 8 are possible", {extents.size()});
  }
  for (const std::int64_t extent : extents) {
    if (extent < 0 || (extent > 0 && element_count_ > (std::int64_t{1} << 60) / extent)) {
      throw_error(Errc::invalid_argument, "extent {} of a shape is negative or makes it too large", {extent});
    }
    extents_[rank_++] = extent;
    element_count_ *= extent;
  }
}

DTRAIN_DEFINED std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape.extents()) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  }
  return text + "]";
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void TensorView::refuse_read_as(DType other) const {
  throw_error(Errc::invalid_argument, "a view of {} on {} was read as {} on host",
              {name(dtype), to_string(device), name(other)});
}

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
