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
  std::uint64_t begin = 0;     ///< of its bytes, from the first tensor's first element
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  /// @returns nullptr if there is none of that name
  const FileTensor* find(std::string_view name) const noexcept;

  std::vector<FileTensor> tensors;  ///< by name
  std::uint64_t element_bytes = 0;
  std::string sharding;               ///< value of sharding_key
  std::optional<std::string> digest;  ///< value of digest_key
  std::size_t digest_at = 0;          ///< position of its digits in the text; 0: it has escapes, or is none
};

/// Reads the header of a file from anywhere. Memory: a small multiple of the text's size.
/// @returns why the text is none, as a sentence's second half; nullopt: `header` has its content
std::optional<std::string> parse_safetensors(std::string_view text, SafetensorsHeader& header);

/// "F32"; in a file, the name of the type.
std::string_view safetensors_type(DType dtype) noexcept;

/// Indices of the tensors in a file's order: larger element types first, so that all tensors are aligned.
std::vector<std::size_t> safetensors_order(std::span<const ParameterSignature> tensors);

/// N and the JSON, whose length is a multiple of 8. The digits of the digest are '0', from digest_position.
/// @param order of safetensors_order @param sharding value of sharding_key; empty: none
/// @throws Error (invalid_argument) for a name twice, '__metadata__', or a name that is not UTF-8; (limit) for a text
/// that other programs would not read
std::string safetensors_header(std::span<const ParameterSignature> tensors, std::span<const std::size_t> order,
                               std::string_view sharding = {});

/// Position of the digest's digits in a file that dtrain writes.
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
#include "dtrain/core/text/json_tokens.hpp"
#include "dtrain/core/text/sanitize.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// Names of the types in files, in the order of DType's numbers.
inline constexpr std::array<std::string_view, 9> type_names{"F64", "F32", "F16",     "BF16",   "I64",
                                                            "I32", "U8",  "F8_E4M3", "F8_E5M2"};
static_assert(type_names.size() == static_cast<std::size_t>(last_dtype));

/// Whole numbers alone: no sign, no fraction, at most 64 bits; with the space around it.
inline bool read_integer(JsonTokens& json, std::uint64_t& value) {
  std::string_view digits;
  json.skip_space();
  const bool is_number = json.number(digits);
  json.skip_space();
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return is_number && error == std::errc{} && end == digits.data() + digits.size();
}

class HeaderParser {
 public:
  HeaderParser(std::string_view text, SafetensorsHeader& header) : json_(text), header_(header) {}

  std::string parse() {
    if (const std::size_t at = first_invalid_utf8(json_.text()); at != std::string_view::npos) {
      return format_text("byte {} of its header is not UTF-8", {at});
    }
    const bool read = json_.members('{', '}', [this] { return member(); });
    json_.skip_space();
    if (reason_.empty() && (!read || !json_.at_end())) {
      reason_ = format_text("its header is not the JSON of a safetensors file from byte {} on", {json_.position()});
    }
    if (reason_.empty()) check_places();
    if (reason_.empty()) check_names();
    return reason_;
  }

 private:
  bool refuse(std::string reason) {
    reason_ = std::move(reason);
    return false;
  }

  bool member() {
    std::string name;
    if (!json_.key(name)) return false;
    const bool read = name == "__metadata__" ? metadata() : tensor(std::move(name));
    json_.skip_space();
    return read;
  }

  bool metadata() {
    if (std::exchange(has_metadata_, true)) return refuse("its header has __metadata__ twice");
    if (json_.word("null")) return true;
    return json_.members('{', '}', [this] {
      std::string& key = keys_.emplace_back();
      if (!json_.key(key)) return false;
      const std::size_t begin = json_.position() + 1;
      std::string value;
      const bool read = json_.string(value);
      if (key == digest_key) {
        header_.digest_at = value.size() == 64 && json_.position() == begin + 65 ? begin : 0;
        header_.digest = std::move(value);
      } else if (key == sharding_key) {
        header_.sharding = std::move(value);
      }
      json_.skip_space();
      return read;
    });
  }

  bool tensor(std::string name) {
    constexpr int deepest = 32;  // of what is in a field that nobody knows
    constexpr std::array<std::string_view, 3> fields{"dtype", "shape", "data_offsets"};
    FileTensor& tensor = header_.tensors.emplace_back();
    tensor.name = std::move(name);
    std::array<bool, fields.size()> has{};
    std::uint64_t elements = 1;
    const bool read = json_.members('{', '}', [&] {
      std::string field;
      if (!json_.key(field)) return false;
      const auto which = static_cast<std::size_t>(std::find(fields.begin(), fields.end(), field) - fields.begin());
      if (which == fields.size()) return json_.skip_value(deepest);
      if (std::exchange(has[which], true)) return refuse(of(tensor) + " has the field '" + field + "' twice");
      const bool is_field = which == 0   ? json_.string(tensor.type)
                            : which == 1 ? shape(tensor, elements)
                                         : offsets(tensor);
      json_.skip_space();
      return is_field;
    });
    if (!read) return false;
    if (has != std::array{true, true, true}) return refuse(of(tensor) + " has no dtype, no shape or no data_offsets");
    const auto type = std::find(type_names.begin(), type_names.end(), tensor.type);
    if (type == type_names.end()) return true;
    tensor.dtype = static_cast<DType>(type - type_names.begin() + 1);
    const std::uint64_t size = size_bytes(*tensor.dtype);
    const bool fits = elements <= std::numeric_limits<std::uint64_t>::max() / size && tensor.begin <= tensor.end &&
                      tensor.end - tensor.begin == elements * size;
    return fits || refuse(of(tensor) + " has data_offsets that are not those of its dtype and shape");
  }

  /// @param elements gets the product of the extents
  bool shape(FileTensor& tensor, std::uint64_t& elements) {
    std::vector<std::int64_t> extents;
    bool fits = true;
    const bool read = json_.members('[', ']', [&] {
      std::uint64_t extent = 0;
      if (!read_integer(json_, extent)) return false;
      if (extent != 0 && elements > std::numeric_limits<std::uint64_t>::max() / extent) {
        return refuse(of(tensor) + " has a shape with more elements than a number can count");
      }
      fits = fits && extents.size() < Shape::max_rank && std::in_range<std::int64_t>(extent) &&
             (extent == 0 || elements <= (std::uint64_t{1} << 60) / extent);
      if (fits) extents.push_back(static_cast<std::int64_t>(extent));
      elements *= extent;
      return true;
    });
    if (fits) tensor.shape = Shape(extents);
    return read;
  }

  bool offsets(FileTensor& tensor) {
    std::size_t count = 0;
    std::uint64_t number = 0;
    return json_.members('[', ']', [&] {
      const bool read = count < 2 && read_integer(json_, number);
      (count++ == 0 ? tensor.begin : tensor.end) = number;
      return read;
    }) && count == 2;
  }

  /// Elements have no gaps, and no byte is in two tensors.
  void check_places() {
    std::vector<FileTensor>& tensors = header_.tensors;
    std::sort(tensors.begin(), tensors.end(), [](const FileTensor& a, const FileTensor& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    for (const FileTensor& tensor : tensors) {
      if (tensor.begin != header_.element_bytes || tensor.end < tensor.begin) {
        refuse(format_text("{} has the bytes from {} to {}, and the tensors before it end at {}",
                           {of(tensor), tensor.begin, tensor.end, header_.element_bytes}));
        return;
      }
      header_.element_bytes = tensor.end;
    }
  }

  void check_names() {
    std::vector<FileTensor>& tensors = header_.tensors;
    std::sort(tensors.begin(), tensors.end(), [](const FileTensor& a, const FileTensor& b) { return a.name < b.name; });
    const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                          [](const FileTensor& a, const FileTensor& b) { return a.name == b.name; });
    if (twice != tensors.end()) refuse(of(*twice) + " is there twice");
    std::sort(keys_.begin(), keys_.end());
    const auto key = std::adjacent_find(keys_.begin(), keys_.end());
    if (key != keys_.end()) refuse(format_text("its metadata has {} twice", {in_quotes(*key)}));
  }

  static std::string of(const FileTensor& tensor) { return "its tensor " + in_quotes(tensor.name); }

  JsonTokens json_;
  SafetensorsHeader& header_;
  std::vector<std::string> keys_;  ///< of the metadata
  bool has_metadata_ = false;
  std::string reason_;
};

}  // namespace detail

DTRAIN_DEFINED const FileTensor* SafetensorsHeader::find(std::string_view name) const noexcept {
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const FileTensor& each, std::string_view wanted) { return each.name < wanted; });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

DTRAIN_DEFINED std::optional<std::string> parse_safetensors(std::string_view text, SafetensorsHeader& header) {
  std::string reason = detail::HeaderParser(text, header).parse();
  return reason.empty() ? std::nullopt : std::optional(std::move(reason));
}

DTRAIN_DEFINED std::string_view safetensors_type(DType dtype) noexcept {
  return detail::type_names[static_cast<std::size_t>(dtype) - 1];
}

DTRAIN_DEFINED std::vector<std::size_t> safetensors_order(std::span<const ParameterSignature> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return size_bytes(tensors[a].dtype) > size_bytes(tensors[b].dtype);
  });
  return order;
}

DTRAIN_DEFINED std::string safetensors_header(std::span<const ParameterSignature> tensors,
                                              std::span<const std::size_t> order, std::string_view sharding) {
  std::vector<std::string_view> names{"__metadata__"};
  for (const ParameterSignature& tensor : tensors) {
    names.push_back(tensor.name);
    if (first_invalid_utf8(tensor.name) == std::string_view::npos) continue;
    throw_error(Errc::invalid_argument, "the name {} of a checkpoint's tensor is not UTF-8; give it another",
                {in_quotes(tensor.name)});
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    throw_error(Errc::invalid_argument,
                "a checkpoint cannot have {} as the name of {}; give each tensor a name of its own",
                {in_quotes(*twice), *twice == "__metadata__" ? "a tensor" : "two tensors"});
  }
  std::string text(sizeof(std::uint64_t), '\0');
  text.append(header_before_digest).append(64, '0') += '"';
  if (!sharding.empty()) {
    text += ',';
    append_json_text(text, sharding_key);
    text += ':';
    append_json_text(text, sharding);
  }
  text += '}';
  std::uint64_t end = 0;
  for (const std::size_t i : order) {
    const ParameterSignature& tensor = tensors[i];
    const std::uint64_t begin = std::exchange(end, end + tensor.shape.element_count() * size_bytes(tensor.dtype));
    text += ',';
    append_json_text(text, tensor.name);
    append_text(text, R"(:{"dtype":"{}","shape":{},"data_offsets":[{},{}]})",
                {safetensors_type(tensor.dtype), to_string(tensor.shape), begin, end});
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
  JsonTokens json(text);
  std::string field;
  const bool read = json.members('{', '}', [&] {
    auto& [name, offset] = first.emplace_back();
    std::size_t numbers = 0;
    const auto number = [&, &element = offset] { return numbers++ == 0 && detail::read_integer(json, element); };
    const auto member = [&] {
      field.clear();
      const bool is_field = json.key(field) && field == "saved_offsets" && json.members('[', ']', number);
      json.skip_space();
      return is_field && numbers == 1;
    };
    const bool is_entry = json.key(name) && json.members('{', '}', member) && numbers == 1;
    json.skip_space();
    return is_entry;
  });
  std::sort(first.begin(), first.end());
  return read && json.at_end() ? std::optional(std::move(first)) : std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
