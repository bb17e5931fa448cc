#pragma once
/// @file
/// Header of a safetensors file: names, types, shapes and places of its tensors, as JSON. Pure.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/agreement/model_signature.hpp"

namespace DTRAIN_NAMESPACE::ddp {

// The format (https://huggingface.co/docs/safetensors): u64 N, little-endian; N bytes of JSON; the elements, as they
// lie in memory, without gaps. The JSON: {"__metadata__": {KEY: TEXT, ...}, NAME: {"dtype": "F32", "shape": [2, 3],
// "data_offsets": [begin, end]}, ...}, with offsets from the first element.

/// The longest header that is read, and that is written: other readers have these bounds.
inline constexpr std::size_t max_header_bytes_read = 100'000'000;
inline constexpr std::size_t max_header_bytes_written = 25'000'000;

/// Key of the metadata: SHA-256 of the whole file, in which these 64 digits are '0'.
inline constexpr std::string_view digest_key = "dtrain.sha256";

/// Key of the metadata of a file with parts of tensors: {NAME: {"saved_offsets": [first element]}}.
inline constexpr std::string_view sharding_key = "DCP_SHARDING_INFO";

/// A tensor of a file, as the header says it.
struct FileTensor {
  std::string name;
  std::string type;            ///< "F32"
  std::optional<DType> dtype;  ///< nullopt: a type that dtrain does not have
  std::optional<Shape> shape;  ///< nullopt: more extents or elements than a Shape has
  std::uint64_t begin = 0;     ///< first byte, from the first tensor's first element
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<FileTensor> tensors;  ///< sorted by name
  std::uint64_t element_bytes = 0;
  std::string sharding;               ///< value of sharding_key
  std::optional<std::string> digest;  ///< value of digest_key
};

/// Reads the header of a file from anywhere. Memory: a small multiple of the text's size.
/// @returns why the text is none, as a sentence's second half; empty: `header` has its content
std::string parse_safetensors(std::string_view text, SafetensorsHeader& header);

/// Tensors for a file, with the types' names there, and without places.
std::vector<FileTensor> file_tensors(std::span<const ParameterSignature> tensors);

namespace detail {

/// @returns the bytes of an element of a type of files; nullopt for a type that dtrain does not know
std::optional<std::size_t> element_bytes(std::string_view type);

}  // namespace detail

/// Indices of the tensors in a file's order: larger element types first, so that all tensors are aligned.
std::vector<std::size_t> safetensors_order(std::span<const FileTensor> tensors);

/// Keys and values of a file's metadata, besides "format" and digest_key.
using FileMetadata = std::vector<std::pair<std::string, std::string>>;

/// N and the JSON, whose length is a multiple of 8. The digits of the digest are '0', from digest_position.
/// @param tensors of file_tensors; types and shapes may be others of as many bytes @param order of safetensors_order
/// @param metadata with distinct keys, for example sharding_key
/// @throws Error (invalid_argument) for a name twice, '__metadata__', or a name that is not UTF-8; (limit) for a text
/// that other programs would not read
std::string safetensors_header(std::span<const FileTensor> tensors, std::span<const std::size_t> order,
                               const FileMetadata& metadata = {});

/// The text before the digest's digits, and their position in a file. No other program writes a digest.
inline constexpr std::string_view header_before_digest = R"({"__metadata__":{"format":"pt","dtrain.sha256":")";
inline constexpr std::size_t digest_position = sizeof(std::uint64_t) + header_before_digest.size();

/// Reads a value of sharding_key. @returns the names, sorted, with the first element of each; nullopt for another text
std::optional<std::vector<std::pair<std::string, std::uint64_t>>> parse_sharding(std::string_view text);

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <numeric>
#include <system_error>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/identity/formats/json.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// Names of the types in files, in the order of DType's numbers.
inline constexpr std::array<std::string_view, 11> type_names{"F64", "F32",     "F16",     "BF16", "I64", "I32",
                                                             "U8",  "F8_E4M3", "F8_E5M2", "U32",  "U64"};
static_assert(type_names.size() == static_cast<std::size_t>(last_dtype));

/// Types of files without a DType, with the bytes of an element.
inline constexpr std::array<std::pair<std::string_view, std::size_t>, 5> other_types{
    {{"BOOL", 1}, {"I8", 1}, {"I16", 2}, {"U16", 2}, {"C64", 8}}};

DTRAIN_DEFINED std::optional<std::size_t> element_bytes(std::string_view type) {
  const auto known = std::find(type_names.begin(), type_names.end(), type);
  if (known != type_names.end()) return size_bytes(static_cast<DType>(known - type_names.begin() + 1));
  for (const auto& [name, bytes] : other_types) {
    if (name == type) return bytes;
  }
  return std::nullopt;
}

/// Whole numbers of at most 64 bits, in digits alone. @returns whether the value is a list of them
inline bool read_integers(const identity::Json* list, std::vector<std::uint64_t>& numbers) {
  if (list == nullptr || !list->is(identity::Json::Type::array)) return false;
  return std::all_of(list->items.begin(), list->items.end(), [&](const identity::Json& item) {
    const char* const last = item.text.data() + item.text.size();
    const auto [end, error] = std::from_chars(item.text.data(), last, numbers.emplace_back());
    return item.is(identity::Json::Type::number) && error == std::errc{} && end == last;
  });
}

/// @returns the reason why the entry is none; empty: `tensor` has its content
inline std::string read_entry(const identity::Json& entry, FileTensor& tensor) {
  std::vector<std::uint64_t> extents, offsets;
  const identity::Json* const type = entry.find("dtype");
  if (type == nullptr || !type->is(identity::Json::Type::string) || !read_integers(entry.find("shape"), extents) ||
      !read_integers(entry.find("data_offsets"), offsets) || offsets.size() != 2) {
    return "has no dtype, shape and data_offsets, or others than a name, whole numbers and two offsets";
  }
  tensor.type = type->text;
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  const auto known = std::find(type_names.begin(), type_names.end(), tensor.type);
  if (known != type_names.end()) tensor.dtype = static_cast<DType>(known - type_names.begin() + 1);
  const std::optional<std::size_t> known_size = element_bytes(tensor.type);
  const std::uint64_t size = known_size.value_or(1);
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  bool fits = extents.size() <= Shape::max_rank;
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : extents) {
    if (extent != 0 && elements > most / extent) return "has more elements than 64 bits can count";
    fits = fits && std::in_range<std::int64_t>(extent) &&
           (extent == 0 || elements <= (std::uint64_t{1} << 60) / extent);  // the bounds of a Shape
    elements *= extent;
  }
  if (fits) tensor.shape = Shape(std::vector<std::int64_t>(extents.begin(), extents.end()));
  const bool has_room =
      tensor.begin <= tensor.end && elements <= most / size && tensor.end - tensor.begin == elements * size;
  return has_room || !known_size ? "" : "has other data_offsets than its dtype and shape need";
}

/// Sorts the tensors by name. @returns the reason if elements have a gap or belong to two tensors, or a name is there
/// twice; empty if not
inline std::string check_places(std::vector<FileTensor>& tensors, std::uint64_t& end) {
  std::sort(tensors.begin(), tensors.end(), [](const FileTensor& a, const FileTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  for (const FileTensor& tensor : tensors) {
    if (tensor.begin != end || tensor.end < tensor.begin) {
      return format_text("its tensor {} has the bytes from {} to {}, and the tensors before it end at {}",
                         {in_quotes(tensor.name), tensor.begin, tensor.end, end});
    }
    end = tensor.end;
  }
  const auto name = [](const FileTensor& tensor) -> const std::string& { return tensor.name; };
  std::sort(tensors.begin(), tensors.end(), [&](const auto& a, const auto& b) { return name(a) < name(b); });
  const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                        [&](const auto& a, const auto& b) { return name(a) == name(b); });
  return twice == tensors.end() ? "" : format_text("its tensor {} is there twice", {in_quotes(twice->name)});
}

}  // namespace detail

DTRAIN_DEFINED std::string parse_safetensors(std::string_view text, SafetensorsHeader& header) {
  using Type = identity::Json::Type;
  if (const std::size_t at = first_invalid_utf8(text); at != std::string_view::npos) {
    return format_text("byte {} of its header is not UTF-8", {at});
  }
  std::string reason;
  bool has_metadata = false;
  const auto metadata = [&](const identity::Json& value) {
    if (std::exchange(has_metadata, true)) return false;
    for (std::size_t i = 0; i < value.keys.size(); ++i) {
      if (!value.items[i].is(Type::string)) return false;
      if (value.keys[i] == digest_key) header.digest = value.items[i].text;
      if (value.keys[i] == sharding_key) header.sharding = value.items[i].text;
    }
    return value.is(Type::object) || value.is(Type::null);
  };
  const auto at = identity::read_json_members(text, [&](std::string name, const identity::Json& value) {
    if (name == "__metadata__") return metadata(value);
    FileTensor& tensor = header.tensors.emplace_back();
    tensor.name = std::move(name);
    reason = detail::read_entry(value, tensor);
    if (!reason.empty()) reason = format_text("its tensor {} {}", {in_quotes(tensor.name), reason});
    return reason.empty();
  });
  if (!reason.empty()) return reason;
  if (at)
    return format_text("its header is not that of a safetensors file, or has a key twice, from byte {} on", {*at});
  return detail::check_places(header.tensors, header.element_bytes);
}

DTRAIN_DEFINED std::vector<FileTensor> file_tensors(std::span<const ParameterSignature> tensors) {
  std::vector<FileTensor> all;
  for (const ParameterSignature& tensor : tensors) {
    all.push_back({tensor.name, std::string(detail::type_names[static_cast<std::size_t>(tensor.dtype) - 1]),
                   tensor.dtype, tensor.shape});
  }
  return all;
}

DTRAIN_DEFINED std::vector<std::size_t> safetensors_order(std::span<const FileTensor> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return detail::element_bytes(tensors[a].type) > detail::element_bytes(tensors[b].type);
  });
  return order;
}

DTRAIN_DEFINED std::string safetensors_header(std::span<const FileTensor> tensors, std::span<const std::size_t> order,
                                              const FileMetadata& metadata) {
  const auto require_utf8 = [](const std::string& name) {
    if (first_invalid_utf8(name) == std::string_view::npos) return;
    throw_error(Errc::invalid_argument, "the name {} of a checkpoint's tensor is not UTF-8; give it another",
                {in_quotes(name)});
  };
  std::vector<std::string_view> names{"__metadata__"};
  for (const FileTensor& tensor : tensors) {
    names.push_back(tensor.name);
    require_utf8(tensor.name);
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    throw_error(Errc::invalid_argument,
                "a checkpoint cannot have {} as the name of {}; give each tensor a name of its own",
                {in_quotes(*twice), *twice == "__metadata__" ? "a tensor" : "two tensors"});
  }
  std::string text(sizeof(std::uint64_t), '\0');
  text.append(header_before_digest).append(64, '0') += '"';
  for (const auto& [key, value] : metadata) {
    require_utf8(key);
    append_text(text, ",{}:{}", {identity::json_string(key), identity::json_string(value)});
  }
  text += '}';
  std::uint64_t end = 0;
  for (const std::size_t i : order) {
    const FileTensor& tensor = tensors[i];
    const std::size_t size = detail::element_bytes(tensor.type).value_or(1);
    const std::uint64_t begin = std::exchange(end, end + tensor.shape->element_count() * size);
    append_text(text, R"(,{}:{"dtype":"{}","shape":{},"data_offsets":[{},{}]})",
                {identity::json_string(tensor.name), tensor.type, to_string(*tensor.shape), begin, end});
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size() - sizeof(std::uint64_t);
  if (length > max_header_bytes_written) {
    throw_error(Errc::limit,
                "the names and shapes of {} tensors take {} bytes in a checkpoint; at most {} are possible, so put "
                "several into one",
                {tensors.size(), length, max_header_bytes_written});
  }
  static_assert(std::endian::native == std::endian::little, "numbers and elements are written as they lie in memory");
  std::copy_n(reinterpret_cast<const char*>(&length), sizeof(length), text.begin());
  return text;
}

DTRAIN_DEFINED std::optional<std::vector<std::pair<std::string, std::uint64_t>>> parse_sharding(std::string_view text) {
  std::vector<std::pair<std::string, std::uint64_t>> first;
  const auto at = identity::read_json_members(text, [&](std::string name, const identity::Json& value) {
    std::vector<std::uint64_t> offsets;
    const bool is_one = detail::read_integers(value.find("saved_offsets"), offsets) && offsets.size() == 1;
    first.emplace_back(std::move(name), is_one ? offsets[0] : 0);
    return is_one;
  });
  std::sort(first.begin(), first.end());
  return at ? std::nullopt : std::optional(std::move(first));
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
