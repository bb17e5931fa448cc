#pragma once
/// @file
/// TensorView: non-owning view of a program's contiguous tensor: address, Shape, element type, device.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/buffer_view.hpp"

namespace DTRAIN_NAMESPACE {

/// The extents of a tensor, at most eight, outermost first: `{rows, columns}`, integers of any types. A shape without
/// extents has one element.
/// @ingroup views
class Shape {
 public:
  static constexpr std::size_t max_rank = 8;

  /// One extent, from an integer of any type, for example a container's size().
  class Integer {
   public:
    /// @param number or an object that converts to an integer, of at most 64 bits. One beyond std::int64_t becomes
    /// negative, which Shape rejects.
    template <class N, class Promoted = decltype(+std::declval<N&>())>
    requires(std::is_integral_v<Promoted> && sizeof(Promoted) <= sizeof(std::int64_t)) constexpr Integer(N number)
        : value_(static_cast<std::int64_t>(+number)) {}
    constexpr std::int64_t value() const noexcept { return value_; }

   private:
    std::int64_t value_;
  };

  constexpr Shape() noexcept = default;

  /// @throws Error (invalid_argument) for more than eight extents, a negative one, or a product beyond 2^60 (whose
  /// bytes still fit a size_t)
  Shape(std::initializer_list<Integer> extents);

  /// @throws as the other constructor
  explicit Shape(std::span<const std::int64_t> extents);

  constexpr std::span<const std::int64_t> extents() const noexcept { return {extents_.data(), rank_}; }
  constexpr std::size_t element_count() const noexcept { return static_cast<std::size_t>(element_count_); }

  friend constexpr bool operator==(const Shape&, const Shape&) = default;

 private:
  void require_few(std::size_t extents) const;
  void add(std::int64_t extent);

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

/// Whether all of the part's memory is the whole's.
inline bool lies_within(const TensorView& part, const TensorView& whole) noexcept {
  return part.data >= whole.data && part.data + part.bytes() <= whole.data + whole.bytes();
}

namespace detail {

template <class T>
constexpr void require_viewable() noexcept {
  constexpr bool is_const_element = std::is_const_v<T> && Element<std::remove_const_t<T>>;
  static_assert(!is_const_element,
                "dtrain: tensor_view needs memory that may be written, and these elements are const: a member function "
                "that is const sees its vectors so; declare parameters() without const");
  static_assert(Element<T> || is_const_element,
                "dtrain: tensor_view takes float, double, std::int64_t, std::int32_t, std::uint64_t, std::uint32_t, "
                "std::uint8_t, dtrain::float16, dtrain::bfloat16 and types with a dtrain::dtype_of of their own, none "
                "of them const; keep a counter "
                "in a std::int64_t");
}

}  // namespace detail

/// A view of host memory: `tensor_view(weights.data(), {784, 256})`, `tensor_view(data, {images.size(), 3})`.
/// @ingroup views
template <class T>
TensorView tensor_view(T* data, Shape shape) noexcept {
  detail::require_viewable<T>();
  if constexpr (Element<T>) {
    return {reinterpret_cast<std::byte*>(data), shape, dtype_of<T>::value, {}};
  } else {
    return {};
  }
}

/// A view with one extent of all elements of a std::span, and of a std::vector, std::array or T[n] that outlives it:
/// `tensor_view(weights)`.
/// @ingroup views
template <class T, std::size_t Count>
TensorView tensor_view(std::span<T, Count> values) {
  return tensor_view(values.data(), {values.size()});
}
template <class Values>
requires requires(Values& values) {
  std::span(values);
}
TensorView tensor_view(Values& values) {
  return tensor_view(std::span(values));
}

}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE {

DTRAIN_DEFINED Shape::Shape(std::initializer_list<Integer> extents) {
  require_few(extents.size());
  for (const Integer extent : extents) {
    add(extent.value());
  }
}

DTRAIN_DEFINED Shape::Shape(std::span<const std::int64_t> extents) {
  require_few(extents.size());
  for (const std::int64_t extent : extents) {
    add(extent);
  }
}

DTRAIN_DEFINED void Shape::require_few(std::size_t extents) const {
  if (extents > max_rank) {
    throw_error(Errc::invalid_argument, "a shape has {} extents; at most 8 are possible", {extents});
  }
}

DTRAIN_DEFINED void Shape::add(std::int64_t extent) {
  if (extent < 0 || (extent > 0 && element_count_ > (std::int64_t{1} << 60) / extent)) {
    throw_error(Errc::invalid_argument, "extent {} of a shape is negative or makes it too large", {extent});
  }
  extents_[rank_++] = extent;
  element_count_ *= extent;
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
