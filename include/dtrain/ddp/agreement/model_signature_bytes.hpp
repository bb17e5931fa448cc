#pragma once
/// @file
/// Model signature serialisation: to bytes, and from untrusted bytes of another process.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/ddp/agreement/model_signature.hpp"
#include "dtrain/ddp/agreement/tensor_bytes.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/net/framing/byte_reader.hpp"
#include "dtrain/net/framing/byte_writer.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The longest signature that a rank reads.
inline constexpr std::size_t max_signature_bytes = std::size_t{64} << 20;

namespace detail {

inline constexpr std::string_view signature_format = "dtrain ddp 3\n";
inline constexpr std::size_t smallest_parameter_bytes = 4 + 3;  ///< of an entry without a name or extents

/// Options with two values, as bits.
inline std::uint8_t flags_of(const ModelSignature& signature) {
  const int bits = (signature.deterministic ? 1 : 0) | (signature.reorder_gradients ? 2 : 0) |
                   (signature.allow_unused_parameters ? 4 : 0) | (signature.broadcast_buffers ? 8 : 0) |
                   (signature.accumulate == Accumulate::f32 ? 16 : 0);
  return static_cast<std::uint8_t>(bits);
}

inline void read_flags(net::ByteReader& reader, ModelSignature& signature) noexcept {
  const std::uint8_t flags = reader.u8();
  if (flags > 31) {
    reader.fail();
  }
  signature.deterministic = (flags & 1) != 0;
  signature.reorder_gradients = (flags & 2) != 0;
  signature.allow_unused_parameters = (flags & 4) != 0;
  signature.broadcast_buffers = (flags & 8) != 0;
  signature.accumulate = (flags & 16) != 0 ? Accumulate::f32 : Accumulate::element;
}

inline ParameterSignature read_parameter(net::ByteReader& reader) {
  ParameterSignature parameter;
  parameter.name = reader.string(max_parameter_name_bytes);
  parameter.dtype = read_choice(reader, DType::f8e5m2);
  parameter.device = read_choice(reader, DeviceKind::cuda);
  parameter.shape = read_shape(reader);
  return parameter;
}

}  // namespace detail

/// Equal signatures give the same bytes; different signatures give different bytes.
inline std::string serialise(const ModelSignature& signature) {
  net::ByteWriter writer;
  writer.raw(std::as_bytes(std::span(detail::signature_format)));
  writer.u64(signature.bucket_bytes).u64(signature.first_bucket_bytes);
  writer.u8(static_cast<std::uint8_t>(signature.reduce_op)).u8(detail::flags_of(signature));
  writer.u64(signature.parameters.size());
  for (const ParameterSignature& parameter : signature.parameters) {
    writer.string(parameter.name).u8(static_cast<std::uint8_t>(parameter.dtype));
    writer.u8(static_cast<std::uint8_t>(parameter.device));
    detail::write_shape(writer, parameter.shape);
  }
  return std::string(writer.characters());
}

/// Parses untrusted bytes. Memory stays below a small multiple of their size.
/// @returns nullopt for bytes that serialise does not produce
inline std::optional<ModelSignature> parse_signature(std::string_view bytes) {
  if (bytes.size() > max_signature_bytes || !bytes.starts_with(detail::signature_format)) return std::nullopt;
  net::ByteReader reader(bytes.substr(detail::signature_format.size()));
  ModelSignature signature;
  signature.bucket_bytes = reader.u64();
  signature.first_bucket_bytes = reader.u64();
  signature.reduce_op = detail::read_choice(reader, ReduceOp::product);
  detail::read_flags(reader, signature);
  const std::uint64_t count = reader.u64();
  if (count > reader.remaining() / detail::smallest_parameter_bytes) return std::nullopt;
  for (std::uint64_t i = 0; i < count && reader.ok(); ++i) {
    signature.parameters.push_back(detail::read_parameter(reader));
  }
  return reader.finished() ? std::optional(std::move(signature)) : std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::ddp
