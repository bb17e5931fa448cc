#pragma once
/// @file
/// What a call throws, for tests that look at its code and sentence.

#include <doctest/doctest.h>

#include <string>
#include <system_error>

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

/// Checks that `call` throws an Error with this code, in whose sentence `part` stands.
template <class Call>
void expect_error(dtrain::Errc code, const char* part, Call call) {
  const dtrain::Error error = error_of(call);
  CAPTURE(std::string(error.what()));
  CHECK(error.code() == make_error_code(code));
  CHECK(contains(error.what(), part));
}

}  // namespace support
