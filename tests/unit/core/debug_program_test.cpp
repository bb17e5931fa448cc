#include "dtrain/core/debug_program.hpp"

#include <doctest/doctest.h>

#include <cassert>

// tests/package/check.py builds programs of files with and without NDEBUG.
TEST_CASE("a program of which a file was compiled without NDEBUG is a debug program") {
#ifndef NDEBUG
  CHECK(dtrain::is_debug_program());
#else
  CHECK_FALSE(dtrain::is_debug_program());  // all test programs are compiled with the same flags
#endif
}
