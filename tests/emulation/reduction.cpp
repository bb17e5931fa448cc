/// @file
/// One loop for each type; sums of short floats are rounded after each addition, as a GPU does.

#include "reduction.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "dtrain/core/types/small_floats.hpp"

namespace emulation {
namespace {

template <class T>
constexpr bool is_short_float = std::is_class_v<T>;

/// What an element is computed with: integers wrap around, as unsigned ones.
template <class T>
struct computed : std::conditional<is_short_float<T>, float, T> {};

template <class T>
auto widened(T element) {
  return static_cast<typename computed<T>::type>(element);
}

template <class T>
T sum(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
  } else {
    return T(widened(a) + widened(b));
  }
}

template <class T>
T product(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return T(widened(a) * widened(b));
  }
}

template <class T>
T scaled(T element, double scalar) {
  if constexpr (std::is_integral_v<T>) {
    return product(element, static_cast<T>(scalar));
  } else {
    return T(widened(element) * widened(T(static_cast<typename computed<T>::type>(scalar))));  // it has T's digits
  }
}

template <class T>
T combined(ncclRedOp_t kind, T a, T b) {
  switch (kind) {
    case ncclProd: return product(a, b);
    case ncclMax: return widened(a) < widened(b) ? b : a;
    case ncclMin: return widened(b) < widened(a) ? b : a;
    default: return sum(a, b);
  }
}

template <class T>
void reduce_as(const Reduction& reduction, std::span<const std::byte* const> inputs, std::byte* out,
               std::size_t count) {
  const auto element = [&](std::size_t rank, std::size_t i) {
    T value;
    std::memcpy(&value, inputs[rank] + i * sizeof(T), sizeof(T));
    return reduction.is_scaled ? scaled(value, reduction.scalar) : value;
  };
  for (std::size_t i = 0; i < count; ++i) {
    T value = element(0, i);
    for (std::size_t rank = 1; rank < inputs.size(); ++rank)
      value = combined(reduction.kind, value, element(rank, i));
    if constexpr (std::is_integral_v<T>) {
      if (reduction.kind == ncclAvg) value = static_cast<T>(value / static_cast<T>(inputs.size()));
    }
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

/// Calls `body` with a value of the type.
template <class Body>
void with_type(ncclDataType_t type, Body body) {
  switch (type) {
    case ncclInt8: return body(std::int8_t{});
    case ncclUint8: return body(std::uint8_t{});
    case ncclInt32: return body(std::int32_t{});
    case ncclUint32: return body(std::uint32_t{});
    case ncclInt64: return body(std::int64_t{});
    case ncclUint64: return body(std::uint64_t{});
    case ncclFloat16: return body(dtrain::float16{});
    case ncclBfloat16: return body(dtrain::bfloat16{});
    case ncclFloat32: return body(float{});
    case ncclFloat64: return body(double{});
    default: return;
  }
}

}  // namespace

std::size_t element_bytes(ncclDataType_t type) noexcept {
  std::size_t bytes = 0;
  with_type(type, [&](auto element) { bytes = sizeof element; });
  return bytes;
}

bool is_floating(ncclDataType_t type) noexcept {
  bool floating = false;
  with_type(type, [&](auto element) { floating = !std::is_integral_v<decltype(element)>; });
  return floating;
}

void reduce(ncclDataType_t type, const Reduction& reduction, std::span<const std::byte* const> inputs, std::byte* out,
            std::size_t count) {
  with_type(type, [&](auto element) { reduce_as<decltype(element)>(reduction, inputs, out, count); });
}

double scalar_at(const void* scalar, ncclDataType_t type) {
  double value = 0;
  with_type(type, [&](auto element) {
    std::memcpy(&element, scalar, sizeof element);
    value = static_cast<double>(widened(element));
  });
  return value;
}

}  // namespace emulation
