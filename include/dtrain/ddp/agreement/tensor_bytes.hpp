#pragma once
/// @file
/// Tensor metadata serialisation: enumerations and shapes to bytes, and from untrusted bytes.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dtrain/core/error.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/net/framing/byte_reader.hpp"
#include "dtrain/net/framing/byte_writer.hpp"

namespace DTRAIN_NAMESPACE::ddp::detail {

/// Reads an enumeration with values 1..last from one byte. Any other byte makes the reader fail.
template <class Enum>
Enum read_choice(net::ByteReader& reader, Enum last) noexcept {
  const std::uint8_t value = reader.u8();
  if (value < 1 || value > static_cast<std::uint8_t>(last)) {
    reader.fail();
    return last;
  }
  return static_cast<Enum>(value);
}

/// Format: u8 number of extents, each extent as i64.
inline void write_shape(net::ByteWriter& writer, const Shape& shape) {
  writer.u8(static_cast<std::uint8_t>(shape.extents().size()));
  for (const std::int64_t extent : shape.extents()) {
    writer.i64(extent);
  }
}

/// Bytes that are not a shape make the reader fail.
inline Shape read_shape(net::ByteReader& reader) {
  const std::size_t rank = reader.u8();
  std::array<std::int64_t, Shape::max_rank> extents{};
  if (rank > extents.size()) {
    reader.fail();
    return {};
  }
  for (std::size_t i = 0; i < rank; ++i) {
    extents[i] = reader.i64();
  }
  try {
    return Shape(std::span(extents).first(rank));
  } catch (const Error&) {
    reader.fail();
    return {};
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp::detail
