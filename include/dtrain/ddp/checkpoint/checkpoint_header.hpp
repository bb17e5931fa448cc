#pragma once
/// @file
/// Checkpoint header: format of a checkpoint file, and its list of tensors.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/crypto/sha256.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/agreement/model_signature.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Format of a checkpoint file. No gaps; all numbers little-endian:
///   checkpoint_magic
///   u32   length of the list, in bytes
///   list  u32 count; of each tensor: u32 length and name, u8 dtype, u8 number of extents, each extent as i64
///   ...   the tensors' elements as they lie in memory, in the order of the list
///   32    SHA-256 of all bytes before it
inline constexpr std::string_view checkpoint_magic = "dtrain checkpoint 1\n";
inline constexpr std::size_t checkpoint_preamble_bytes = checkpoint_magic.size() + 4;
inline constexpr std::size_t checkpoint_digest_bytes = std::tuple_size_v<Sha256Digest>;

/// The longest list that is written or read.
inline constexpr std::size_t max_checkpoint_list_bytes = std::size_t{64} << 20;

/// The most tensors in a checkpoint.
inline constexpr std::size_t max_checkpoint_tensors = std::size_t{1} << 20;

/// The content of a preamble.
struct CheckpointPreamble {
  bool is_checkpoint = false;    ///< of any version
  bool is_this_version = false;  ///< list_bytes is valid only then
  std::uint32_t list_bytes = 0;
};

CheckpointPreamble parse_checkpoint_preamble(std::span<const std::byte> bytes);

/// The bytes before the elements. @throws Error (limit) for a list that parse_checkpoint_list would reject
std::vector<std::byte> checkpoint_header(std::vector<ParameterSignature> tensors);

/// Parses the list of a header from untrusted bytes. Memory stays below a small multiple of their size.
/// @returns nullopt for bytes that checkpoint_header does not produce
std::optional<std::vector<ParameterSignature>> parse_checkpoint_list(std::span<const std::byte> bytes);

/// The size of all elements in bytes. @returns nullopt if it is more than `most`
std::optional<std::uint64_t> element_bytes(std::span<const ParameterSignature> tensors, std::uint64_t most);

#if DTRAIN_DEFINITIONS

namespace detail {

inline void list_fields(Serializer& of, std::vector<ParameterSignature>& tensors) {
  of.list(tensors, 0, max_checkpoint_tensors, [&of](ParameterSignature& tensor) { tensor_fields(of, tensor); });
}

}  // namespace detail

DTRAIN_DEFINED CheckpointPreamble parse_checkpoint_preamble(std::span<const std::byte> bytes) {
  CheckpointPreamble preamble;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  preamble.is_checkpoint = text.starts_with(checkpoint_magic.substr(0, checkpoint_magic.size() - 2));
  Serializer reader(bytes);
  reader.constant(checkpoint_magic);
  preamble.is_this_version = reader.ok();
  reader.number(preamble.list_bytes);
  return preamble;
}

DTRAIN_DEFINED std::vector<std::byte> checkpoint_header(std::vector<ParameterSignature> tensors) {
  if (tensors.size() > max_checkpoint_tensors) {
    throw_error(Errc::limit,
                "a checkpoint of {} tensors was to be written; at most {} are possible, so put several into one",
                {tensors.size(), max_checkpoint_tensors});
  }
  Serializer list;
  detail::list_fields(list, tensors);
  if (list.view().size() > max_checkpoint_list_bytes) {
    throw_error(Errc::limit,
                "the names and shapes of {} tensors take {} bytes in a checkpoint; at most {} are possible",
                {tensors.size(), list.view().size(), max_checkpoint_list_bytes});
  }
  Serializer header;
  auto list_bytes = static_cast<std::uint32_t>(list.view().size());
  header.constant(checkpoint_magic);
  header.number(list_bytes);
  header.constant(list.characters());
  return header.take();
}

DTRAIN_DEFINED std::optional<std::vector<ParameterSignature>> parse_checkpoint_list(std::span<const std::byte> bytes) {
  if (bytes.size() > max_checkpoint_list_bytes) return std::nullopt;
  std::vector<ParameterSignature> tensors;
  Serializer reader(bytes);
  detail::list_fields(reader, tensors);
  return reader.finished() ? std::optional(std::move(tensors)) : std::nullopt;
}

DTRAIN_DEFINED std::optional<std::uint64_t> element_bytes(std::span<const ParameterSignature> tensors,
                                                          std::uint64_t most) {
  std::uint64_t sum = 0;
  for (const ParameterSignature& tensor : tensors) {
    const std::uint64_t bytes = BufferView{nullptr, tensor.shape.element_count(), tensor.dtype, {}}.bytes();
    if (bytes > most - sum) return std::nullopt;
    sum += bytes;
  }
  return sum;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
