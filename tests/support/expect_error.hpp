#pragma once
/// @file
/// What a call throws, for tests that look at its code and sentence.

#include <doctest/doctest.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "dtrain/core/error.hpp"
#include "support/contains.hpp"

namespace support {

/// The Error that `call` throws; one without a code where it throws none.
template <class Call>
dtrain::Error error_of(Call call) {
  try {
    call();
  } catch (const dtrain::Error& error) {
    return error;
  }
  return {std::error_code(), "nothing was thrown"};
}

template <class Call>
std::string sentence_of(Call call) {
  return error_of(call).what();
}

/// The sentence of the Error with `code` that `call` throws; one that says so where it has another code.
template <class Call>
std::string sentence_of(dtrain::Errc code, Call call) {
  const dtrain::Error error = error_of(call);
  return error.code() == code ? error.what() : std::string("another code: ") + error.what();
}

/// How `thrown` differs from an Error with `code`, and then for each of `parts` how its sentence lacks that; empty
/// texts where they do not.
inline std::vector<std::string> differences_from(std::error_code code, const char* call,
                                                 const std::optional<dtrain::Error>& thrown,
                                                 std::initializer_list<std::string_view> parts) {
  const std::string sentence = thrown ? thrown->what() : "";
  std::vector<std::string> all = missing_parts(sentence, parts);
  all.emplace(all.begin());
  if (!thrown || thrown->code() != code) {
    all.front() = std::string(call) + " threw " + (thrown ? "'" + thrown->code().message() + "'" : "nothing") +
                  ", instead of '" + code.message() + "'" + (thrown ? ": " + sentence : "");
  }
  return all;
}

/// The same for an Errc or a std::errc, and any texts.
template <class Code, class... Parts>
std::vector<std::string> differences(const char* call, const std::optional<dtrain::Error>& thrown, Code code,
                                     const Parts&... parts) {
  return differences_from(make_error_code(code), call, thrown, {std::string_view(parts)...});
}

}  // namespace support

/// Checks that an expression throws an Error with a code, an Errc or a std::errc, and of each text that it stands in
/// the sentence: `CHECK_ERROR(parse("x"), Errc::usage, "'x'", "unset it")`.
#define CHECK_ERROR(expression, ...)                                            \
  do {                                                                          \
    std::optional<::dtrain::Error> error_of_expression;                         \
    try {                                                                       \
      static_cast<void>(expression);                                            \
    } catch (const ::dtrain::Error& caught_error) {                             \
      error_of_expression.emplace(caught_error);                                \
    }                                                                           \
    for (const std::string& difference_of_error :                               \
         ::support::differences(#expression, error_of_expression, __VA_ARGS__)) \
      CHECK_MESSAGE(difference_of_error.empty(), difference_of_error);          \
  } while (false)
