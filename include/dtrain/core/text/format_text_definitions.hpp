#pragma once
/// @file
/// Definitions of the functions of core/text/format_text.hpp.

#include <cstring>

#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE {

DTRAIN_DEFINED void TextValue::append_to(std::string& text) const {
  switch (kind_) {
    case Kind::characters: text.append(characters_, static_cast<std::size_t>(number_)); break;
    case Kind::signed_number: text += std::to_string(static_cast<std::int64_t>(number_)); break;
    case Kind::unsigned_number: text += std::to_string(number_); break;
  }
}

namespace detail {

DTRAIN_NOT_INLINED DTRAIN_DEFINED std::string format_values(const char* pattern, std::span<const TextValue> values) {
  std::string text;
  for (const TextValue& value : values) {
    const char* const place = std::strstr(pattern, "{}");
    text.append(pattern, place);
    value.append_to(text);
    pattern = place + 2;
  }
  return text += pattern;
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void throw_formatted(Errc code, const char* pattern,
                                                       std::span<const TextValue> values, SourceLocation where) {
  throw Error(code, format_values(pattern, values), where);
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void throw_formatted_posix(int number, const char* pattern,
                                                             std::span<const TextValue> values, const char* remedy,
                                                             SourceLocation where) {
  throw posix_error(number, format_values(pattern, values), remedy, where);
}

}  // namespace detail

}  // namespace DTRAIN_NAMESPACE
