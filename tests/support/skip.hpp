#pragma once
/// @file
/// Says that a test cannot run here and why, so that ctest counts it as skipped and the reason is printed.

#include <cstdio>
#include <string>

namespace dtrain_test {

/// What the program's exit code is made from; only a test program has it.
inline bool& something_was_skipped() {
  static bool skipped = false;
  return skipped;
}

/// Prints `SKIPPED: reason`; the program then exits with 77 unless a check failed.
/// The test case returns after it: `if (cores < 2) return dtrain_test::skip("needs two cores");`
inline void skip(const std::string& reason) {
  std::printf("SKIPPED: %s\n", reason.c_str());
  std::fflush(stdout);
  something_was_skipped() = true;
}

/// Skips the test case where `holds` is false. @returns `holds`: `if (!needs(cores > 1, "needs two cores")) return;`
inline bool needs(bool holds, const std::string& otherwise) {
  if (!holds) skip(otherwise);
  return holds;
}

}  // namespace dtrain_test
