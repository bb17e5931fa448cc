#pragma once
/// @file
/// number_text(): floating-point numbers as text, the same in every locale. format_text() calls it.

#include <string>

#include "dtrain/core/config.hpp"

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

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
