#include "dtrain/core/log.hpp"

#include <doctest/doctest.h>

namespace {

using dtrain::log_level_of;
using dtrain::LogLevel;

TEST_CASE("each level is found by its name") {
  CHECK(log_level_of("off") == LogLevel::off);
  CHECK(log_level_of("error") == LogLevel::error);
  CHECK(log_level_of("warning") == LogLevel::warning);
  CHECK(log_level_of("info") == LogLevel::info);
  CHECK(log_level_of("debug") == LogLevel::debug);
}

TEST_CASE("a level that is unset or unknown is warning") {
  CHECK(log_level_of(nullptr) == LogLevel::warning);
  CHECK(log_level_of("") == LogLevel::warning);
  CHECK(log_level_of("DEBUG") == LogLevel::warning);
  CHECK(log_level_of("debug ") == LogLevel::warning);
}

TEST_CASE("a more talkative level is a higher one") {
  CHECK(LogLevel::off < LogLevel::error);
  CHECK(LogLevel::error < LogLevel::warning);
  CHECK(LogLevel::warning < LogLevel::info);
  CHECK(LogLevel::info < LogLevel::debug);
}

}  // namespace
