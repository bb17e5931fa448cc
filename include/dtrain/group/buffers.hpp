#pragma once
/// @file
/// What a collective of a group takes: views of any memory, or typed host memory as the program has it.

#include <cstddef>
#include <span>
#include <type_traits>

#include "dtrain/core/buffer_view.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Contiguous host memory of an element type that dtrain knows: std::span of any extent, std::vector, std::array, T[n].
template <class Values>
concept HostValues = requires(Values& values) {
  std::span(values);
  requires Element<std::remove_cv_t<typename decltype(std::span(values))::element_type>>;
};

/// The same, to write.
template <class Values>
concept WritableHostValues = HostValues<Values> && requires(Values& values) {
  requires !std::is_const_v<typename decltype(std::span(values))::element_type>;
};

namespace detail {

template <class Values>
inline constexpr bool is_span = false;
template <class T, std::size_t Extent>
inline constexpr bool is_span<std::span<T, Extent>> = true;

template <class T, std::size_t Extent>
BufferView write_view(std::span<T, Extent> values) noexcept {
  return buffer_view(std::span<T>(values));
}

template <class T, std::size_t Extent>
ConstBufferView read_view(std::span<T, Extent> values) noexcept {
  return buffer_view(std::span<const T>(values));
}

}  // namespace detail

// What is contiguous is a buffer, hence no constructor here is explicit.
// NOLINTBEGIN(google-explicit-constructor)

/// What a collective writes: a container that stays, or a span. Lifetime: the memory outlives the work.
struct WriteBuffer : BufferView {
  constexpr WriteBuffer(const BufferView& view) noexcept : BufferView(view) {}

  template <Element T, std::size_t Extent>
  WriteBuffer(std::span<T, Extent> values) noexcept : BufferView(detail::write_view(values)) {}

  template <WritableHostValues Values>
  requires(!detail::is_span<std::remove_const_t<Values>>) WriteBuffer(Values& values)
  noexcept : BufferView(detail::write_view(std::span(values))) {}
};

/// What a collective reads. Lifetime: the memory outlives the work.
struct ReadBuffer : ConstBufferView {
  constexpr ReadBuffer(const ConstBufferView& view) noexcept : ConstBufferView(view) {}
  constexpr ReadBuffer(const BufferView& view) noexcept : ConstBufferView(view) {}

  template <HostValues Values>
  ReadBuffer(const Values& values) noexcept : ConstBufferView(detail::read_view(std::span(values))) {}
};
// NOLINTEND(google-explicit-constructor)

}  // namespace DTRAIN_NAMESPACE::group
