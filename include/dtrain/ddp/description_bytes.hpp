#pragma once
/// @file
/// A model's description as bytes, and back from bytes that another process wrote.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/ddp/description.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The longest description that is read.
inline constexpr std::size_t max_description_bytes = std::size_t{64} << 20;

namespace detail {

/// Little-endian, whatever the machine.
inline void append(std::string& bytes, std::uint64_t value, std::size_t width = 8) {
  for (std::size_t i = 0; i < width; ++i) {
    bytes.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }
}

/// Reads what append wrote; after the first thing that does not fit everything fails.
class DescriptionReader {
 public:
  explicit DescriptionReader(std::string_view bytes) noexcept : rest_(bytes) {}

  bool number(std::uint64_t& value, std::size_t width = 8) noexcept {
    std::string_view bytes;
    if (!text(bytes, width)) return false;
    value = 0;
    for (std::size_t i = 0; i < width; ++i) {
      value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    }
    return true;
  }

  /// An enumeration whose values are 1..last.
  template <class Enum>
  bool choice(Enum& value, Enum last) noexcept {
    std::uint64_t number_of = 0;
    if (!number(number_of, 1) || number_of < 1 || number_of > static_cast<std::uint64_t>(last)) return false;
    value = static_cast<Enum>(number_of);
    return true;
  }

  bool text(std::string_view& bytes, std::uint64_t length) noexcept {
    if (length > rest_.size()) return false;
    bytes = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }

  bool at_end() const noexcept { return rest_.empty(); }
  std::size_t left() const noexcept { return rest_.size(); }

 private:
  std::string_view rest_;
};

inline constexpr std::string_view description_format = "dtrain ddp 2\n";
inline constexpr std::size_t smallest_parameter_bytes = 4 + 3;  ///< of an entry without a name or extents

/// The options that are yes or no, as bits.
inline std::uint64_t flags_of(const ModelDescription& description) {
  return (description.deterministic ? 1u : 0u) | (description.reorder_gradients ? 2u : 0u) |
         (description.allow_unused_parameters ? 4u : 0u) | (description.broadcast_buffers ? 8u : 0u);
}

inline bool parse_flags(DescriptionReader& reader, ModelDescription& description) {
  std::uint64_t flags = 0;
  if (!reader.number(flags, 1) || flags > 15) return false;
  description.deterministic = (flags & 1) != 0;
  description.reorder_gradients = (flags & 2) != 0;
  description.allow_unused_parameters = (flags & 4) != 0;
  description.broadcast_buffers = (flags & 8) != 0;
  return true;
}

inline bool parse_parameter(DescriptionReader& reader, ParameterDescription& parameter) {
  std::uint64_t name_bytes = 0;
  std::string_view name;
  std::uint64_t rank = 0;
  if (!reader.number(name_bytes, 4) || name_bytes > max_parameter_name_bytes || !reader.text(name, name_bytes) ||
      !reader.choice(parameter.dtype, DType::u8) || !reader.choice(parameter.device, DeviceKind::cuda) ||
      !reader.number(rank, 1) || rank > Shape::max_rank) {
    return false;
  }
  std::array<std::int64_t, Shape::max_rank> extents{};
  for (std::size_t i = 0; i < rank; ++i) {
    std::uint64_t extent = 0;
    if (!reader.number(extent)) return false;
    extents[i] = static_cast<std::int64_t>(extent);
  }
  try {
    parameter.shape = Shape(std::span(extents).first(rank));
  } catch (const Error&) {
    return false;
  }
  parameter.name = name;
  return true;
}

}  // namespace detail

/// The same bytes for equal descriptions, and only for those.
inline std::string serialise(const ModelDescription& description) {
  std::string bytes(detail::description_format);
  detail::append(bytes, description.bucket_bytes);
  detail::append(bytes, description.first_bucket_bytes);
  detail::append(bytes, static_cast<std::uint64_t>(description.reduce_op), 1);
  detail::append(bytes, detail::flags_of(description), 1);
  detail::append(bytes, description.parameters.size());
  for (const ParameterDescription& parameter : description.parameters) {
    detail::append(bytes, parameter.name.size(), 4);
    bytes += parameter.name;
    detail::append(bytes, static_cast<std::uint64_t>(parameter.dtype), 1);
    detail::append(bytes, static_cast<std::uint64_t>(parameter.device), 1);
    detail::append(bytes, parameter.shape.extents().size(), 1);
    for (const std::int64_t extent : parameter.shape.extents()) {
      detail::append(bytes, static_cast<std::uint64_t>(extent));
    }
  }
  return bytes;
}

/// Bytes come from another process: whatever they are, memory stays below a small multiple of their size.
/// @returns nothing for anything that serialise does not write.
inline std::optional<ModelDescription> parse_description(std::string_view bytes) {
  detail::DescriptionReader reader(bytes);
  ModelDescription description;
  std::string_view format;
  std::uint64_t count = 0;
  if (bytes.size() > max_description_bytes || !reader.text(format, detail::description_format.size()) ||
      format != detail::description_format || !reader.number(description.bucket_bytes) ||
      !reader.number(description.first_bucket_bytes) || !reader.choice(description.reduce_op, ReduceOp::product) ||
      !detail::parse_flags(reader, description) || !reader.number(count) ||
      count > reader.left() / detail::smallest_parameter_bytes) {
    return std::nullopt;
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    ParameterDescription parameter;
    if (!detail::parse_parameter(reader, parameter)) return std::nullopt;
    description.parameters.push_back(std::move(parameter));
  }
  return reader.at_end() ? std::optional(std::move(description)) : std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::ddp
