#pragma once
// What is asserted of a program that has ended.

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>

#include "support/contains.hpp"
#include "support/program.hpp"

namespace support {

/// Its exit code, and what its stderr has.
inline void check_ended(const Result& result, int exit_code, std::initializer_list<std::string> said) {
  CAPTURE(result.error);
  CHECK(result.exit_code == exit_code);
  for (const std::string& part : said) {
    CAPTURE(part);
    CHECK(contains(result.error, part));
  }
}

}  // namespace support
