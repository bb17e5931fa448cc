#pragma once
/// @file
/// format_text(): a text with values, the same in every locale. throw_error(): an Error with it. next_entry(),
/// joined(): lists in texts.

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"

namespace DTRAIN_NAMESPACE {

/// @name Numbers that ranks compare, send or print. printf's %f and %g and std::to_string follow setlocale(), so that
/// two ranks with different locales would write one number in two ways ("0.5" and "0,5").
/// @{

/// The shortest text that means this number and no other: "0.01", "20", "1e-10".
std::string number_text(double number);
std::string number_text(float number);

/// @param digits at most this many significant ones, without zeros at the end: "%.3g" of the C locale
std::string number_text(double number, int digits);

/// @param decimals as many, also if they are zeros: "%.1f" of the C locale
std::string fixed_text(double number, int decimals);
/// @}

/// "0.3 s", "600.0 s".
inline std::string duration_text(Deadline::Clock::duration time) {
  return fixed_text(std::chrono::duration<double>(time).count(), 1) + " s";
}

/// A value for a text: characters, to which it refers, or a number (number_text()). Two words, which a call site stores
/// as they are: the length of a std::string is read only when the text is made.
class TextValue {
 public:
  TextValue(const char* characters) noexcept : TextValue(std::string_view(characters)) {}
  TextValue(const std::string& characters) noexcept : text_(&characters), size_(is_text) {}
  TextValue(std::string_view characters) noexcept : characters_(characters.data()), size_(characters.size()) {}
  TextValue(std::signed_integral auto number) noexcept
      : number_(static_cast<std::uint64_t>(std::int64_t{number})), size_(is_signed) {}
  TextValue(std::unsigned_integral auto number) noexcept : number_(number), size_(is_unsigned) {}
  TextValue(std::same_as<double> auto number) noexcept : real_(number), size_(is_double) {}
  TextValue(std::same_as<float> auto number) noexcept : real_(double{number}), size_(is_float) {}
  TextValue(char) = delete;
  TextValue(bool) = delete;

  void append_to(std::string& text) const;

 private:
  /// Values of `size_` that are no count of characters.
  static constexpr std::size_t is_text = ~std::size_t{0};
  static constexpr std::size_t is_signed = is_text - 1;
  static constexpr std::size_t is_unsigned = is_text - 2;
  static constexpr std::size_t is_double = is_text - 3;
  static constexpr std::size_t is_float = is_text - 4;

  union {
    const char* characters_;
    const std::string* text_;
    std::uint64_t number_;  ///< a whole number's bits
    double real_;
  };
  std::size_t size_;
};

/// A constant text with `Count` places `{}` for values; another count does not compile.
template <std::size_t Count>
class TextPattern {
 public:
  consteval TextPattern(const char* characters) : characters_(characters) {
    std::size_t places = 0;
    for (const char* at = characters; *at != '\0'; ++at) {
      if (at[0] == '{' && at[1] == '}') ++places;
    }
    if (places != Count) throw "the text has not one {} for each value";
  }

  constexpr const char* characters() const noexcept { return characters_; }

 private:
  const char* characters_;
};

namespace detail {
/// @param values as many as the pattern has places {}; null: the pattern is the text
void append_values(std::string& text, const char* pattern, const TextValue* values);
std::string format_values(const char* pattern, const TextValue* values);
/// A place as three arguments, which are passed in registers. @{
[[noreturn]] void throw_formatted(Errc code, const char* pattern, const TextValue* values, const char* file,
                                  const char* function, unsigned line);
[[noreturn]] void throw_formatted_posix(int number, const char* pattern, const TextValue* values, const char* remedy,
                                        const char* file, const char* function, unsigned line);
/// @}
}  // namespace detail

/// `format_text("rank {} of {}", {rank, size})`. A call costs a third of the compile time and code of the same text
/// made with `+`: no function is inlined into it, and no std::string is destroyed there.
template <std::size_t Count>
std::string format_text(std::type_identity_t<TextPattern<Count>> pattern, const TextValue (&values)[Count]) {
  return detail::format_values(pattern.characters(), values);
}

/// Appends format_text(pattern, values) to `text`. @pre no value refers to `text`
template <std::size_t Count>
void append_text(std::string& text, std::type_identity_t<TextPattern<Count>> pattern,
                 const TextValue (&values)[Count]) {
  detail::append_values(text, pattern.characters(), values);
}

/// Throws Error(code, format_text(pattern, values)).
template <std::size_t Count>
[[noreturn]] void throw_error(Errc code, std::type_identity_t<TextPattern<Count>> pattern,
                              const TextValue (&values)[Count], SourceLocation where = SourceLocation::current()) {
  detail::throw_formatted(code, pattern.characters(), values, where.file, where.function, where.line);
}

[[noreturn]] inline void throw_error(Errc code, const char* sentence,
                                     SourceLocation where = SourceLocation::current()) {
  detail::throw_formatted(code, sentence, nullptr, where.file, where.function, where.line);
}

/// Throws posix_error(number, format_text(pattern, values), remedy).
template <std::size_t Count>
[[noreturn]] void throw_posix(int number, std::type_identity_t<TextPattern<Count>> pattern,
                              const TextValue (&values)[Count], const char* remedy = "",
                              SourceLocation where = SourceLocation::current()) {
  detail::throw_formatted_posix(number, pattern.characters(), values, remedy, where.file, where.function, where.line);
}

[[noreturn]] inline void throw_posix(int number, std::string_view doing,
                                     SourceLocation where = SourceLocation::current()) {
  throw_posix(number, "{}", {doing}, "", where);
}

/// throw_posix() of the present errno.
template <std::size_t Count>
[[noreturn]] void throw_errno(std::type_identity_t<TextPattern<Count>> pattern, const TextValue (&values)[Count],
                              const char* remedy = "", SourceLocation where = SourceLocation::current()) {
  throw_posix(errno, pattern, values, remedy, where);
}

/// throw_posix() of the present errno.
[[noreturn]] inline void throw_errno(std::string_view doing, SourceLocation where = SourceLocation::current()) {
  throw_posix(errno, doing, where);
}

/// Removes the first entry of `list`, up to `separator` or to the end, and the separator. @returns the entry
inline std::string_view next_entry(std::string_view& list, char separator) noexcept {
  const std::string_view entry = list.substr(0, list.find(separator));
  list.remove_prefix(std::min(entry.size() + 1, list.size()));
  return entry;
}

/// Removes the first word of a line, with the blanks before it. @returns the word; empty if there is none
inline std::string_view next_word(std::string_view& line) noexcept {
  constexpr const char* blanks = " \t\r";
  line.remove_prefix(std::min(line.find_first_not_of(blanks), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(blanks));
  line.remove_prefix(word.size());
  return word;
}

/// Whether a list has the entry; an empty list has none.
inline bool has_entry(std::string_view list, char separator, std::string_view entry) noexcept {
  while (!list.empty()) {
    if (next_entry(list, separator) == entry) return true;
  }
  return false;
}

/// Appends an entry to a list in which `separator` stands between two entries. @pre no entry is empty
void append_entry(std::string& list, const char* separator, TextValue entry);

/// The texts with `separator` between them. @pre none is empty
template <class Texts>
std::string joined(const Texts& texts, const char* separator) {
  std::string list;
  for (const auto& text : texts) {
    append_entry(list, separator, text);
  }
  return list;
}
}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <charconv>

namespace DTRAIN_NAMESPACE {

namespace detail {

/// @param how what std::to_chars takes after the number
template <class Number, class... How>
std::string characters_of(Number number, How... how) {
  char text[400];  // the largest double with one decimal has 311
  const std::to_chars_result result = std::to_chars(text, text + sizeof text, number, how...);
  return std::string(text, result.ec == std::errc{} ? result.ptr : text);
}

}  // namespace detail

DTRAIN_DEFINED std::string number_text(double number) {
  return detail::characters_of(number);
}

DTRAIN_DEFINED std::string number_text(float number) {
  return detail::characters_of(number);
}

DTRAIN_DEFINED std::string number_text(double number, int digits) {
  return detail::characters_of(number, std::chars_format::general, digits);
}

DTRAIN_DEFINED std::string fixed_text(double number, int decimals) {
  return detail::characters_of(number, std::chars_format::fixed, decimals);
}

DTRAIN_DEFINED void TextValue::append_to(std::string& text) const {
  switch (size_) {
    case is_text: text += *text_; break;
    case is_signed: text += std::to_string(static_cast<std::int64_t>(number_)); break;
    case is_unsigned: text += std::to_string(number_); break;
    case is_double: text += number_text(real_); break;
    case is_float: text += number_text(static_cast<float>(real_)); break;
    default: text.append(characters_, size_);
  }
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void append_entry(std::string& list, const char* separator, TextValue entry) {
  if (!list.empty()) list += separator;
  entry.append_to(list);
}

namespace detail {
DTRAIN_NOT_INLINED DTRAIN_DEFINED void append_values(std::string& text, const char* pattern, const TextValue* values) {
  for (const char* place = nullptr; values != nullptr && (place = std::strstr(pattern, "{}")) != nullptr; ++values) {
    text.append(pattern, place);
    values->append_to(text);
    pattern = place + 2;
  }
  text += pattern;
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED std::string format_values(const char* pattern, const TextValue* values) {
  std::string text;
  append_values(text, pattern, values);
  return text;
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void throw_formatted(Errc code, const char* pattern, const TextValue* values,
                                                       const char* file, const char* function, unsigned line) {
  throw Error(code, format_values(pattern, values), SourceLocation::current(file, function, line));
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void throw_formatted_posix(int number, const char* pattern, const TextValue* values,
                                                             const char* remedy, const char* file, const char* function,
                                                             unsigned line) {
  throw posix_error(number, format_values(pattern, values), remedy, SourceLocation::current(file, function, line));
}

}  // namespace detail

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
