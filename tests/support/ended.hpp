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
  for (const std::string& part : said)
    CHECK_CONTAINS(result.error, part);
}

/// It ended well; what its stdout has.
inline void check_printed(const Result& result, std::initializer_list<std::string> printed) {
  CAPTURE(result.error);
  CHECK(result.exit_code == 0);
  for (const std::string& part : printed)
    CHECK_CONTAINS(result.output, part);
}

/// It ended well, and wrote nothing to stderr.
inline void check_quiet(const Result& result) {
  CAPTURE(result.output);
  CHECK(result.exit_code == 0);
  CHECK(result.error == "");
}

/// It ended in time, and not well; what its stderr has.
inline void check_failed(const Result& result, std::initializer_list<std::string> said) {
  CAPTURE(result.error);
  CHECK(result.exit_code != 0);
  CHECK(result.exit_code != -1);
  for (const std::string& part : said)
    CHECK_CONTAINS(result.error, part);
}

}  // namespace support
