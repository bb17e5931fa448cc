#pragma once
/// @file
/// A model's description as bytes, and back from bytes that another process wrote.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/ddp/capture.hpp"
#include "dtrain/ddp/description.hpp"
#include "dtrain/ddp/tensor_bytes.hpp"
#include "dtrain/net/byte_reader.hpp"
#include "dtrain/net/byte_writer.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The longest description that is read.
inline constexpr std::size_t max_description_bytes = std::size_t{64} << 20;

namespace detail {

inline constexpr std::string_view description_format = "dtrain ddp 3\n";
inline constexpr std::size_t smallest_parameter_bytes = 4 + 3;  ///< of an entry without a name or extents

/// The options of two values, as bits.
inline std::uint8_t flags_of(const ModelDescription& description) {
  const int bits = (description.deterministic ? 1 : 0) | (description.reorder_gradients ? 2 : 0) |
                   (description.allow_unused_parameters ? 4 : 0) | (description.broadcast_buffers ? 8 : 0) |
                   (description.accumulate == Accumulate::f32 ? 16 : 0);
  return static_cast<std::uint8_t>(bits);
}

inline void read_flags(net::ByteReader& reader, ModelDescription& description) noexcept {
  const std::uint8_t flags = reader.u8();
  if (flags > 31) {
    reader.fail();
  }
  description.deterministic = (flags & 1) != 0;
  description.reorder_gradients = (flags & 2) != 0;
  description.allow_unused_parameters = (flags & 4) != 0;
  description.broadcast_buffers = (flags & 8) != 0;
  description.accumulate = (flags & 16) != 0 ? Accumulate::f32 : Accumulate::element;
}

inline ParameterDescription read_parameter(net::ByteReader& reader) {
  ParameterDescription parameter;
  parameter.name = reader.string(max_parameter_name_bytes);
  parameter.dtype = read_choice(reader, DType::f8e5m2);
  parameter.device = read_choice(reader, DeviceKind::cuda);
  parameter.shape = read_shape(reader);
  return parameter;
}

}  // namespace detail

/// The same bytes for equal descriptions, and only for those.
inline std::string serialise(const ModelDescription& description) {
  net::ByteWriter writer;
  writer.raw(std::as_bytes(std::span(detail::description_format)));
  writer.u64(description.bucket_bytes).u64(description.first_bucket_bytes);
  writer.u8(static_cast<std::uint8_t>(description.reduce_op)).u8(detail::flags_of(description));
  writer.u64(description.parameters.size());
  for (const ParameterDescription& parameter : description.parameters) {
    writer.string(parameter.name).u8(static_cast<std::uint8_t>(parameter.dtype));
    writer.u8(static_cast<std::uint8_t>(parameter.device));
    detail::write_shape(writer, parameter.shape);
  }
  return std::string(writer.characters());
}

/// Bytes come from another process: whatever they are, memory stays below a small multiple of their size.
/// @returns nothing for anything that serialise does not write.
inline std::optional<ModelDescription> parse_description(std::string_view bytes) {
  if (bytes.size() > max_description_bytes || !bytes.starts_with(detail::description_format)) return std::nullopt;
  net::ByteReader reader(bytes.substr(detail::description_format.size()));
  ModelDescription description;
  description.bucket_bytes = reader.u64();
  description.first_bucket_bytes = reader.u64();
  description.reduce_op = detail::read_choice(reader, ReduceOp::product);
  detail::read_flags(reader, description);
  const std::uint64_t count = reader.u64();
  if (count > reader.remaining() / detail::smallest_parameter_bytes) return std::nullopt;
  for (std::uint64_t i = 0; i < count && reader.ok(); ++i) {
    description.parameters.push_back(detail::read_parameter(reader));
  }
  return reader.finished() ? std::optional(std::move(description)) : std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::ddp
