#include "overlap_probe.hpp"

#include <doctest/doctest.h>

TEST_CASE("overlap is the hidden share of the communication") {
  CHECK(fashion_mnist::overlap_percent(10, 10, 4) == doctest::Approx(100));
  CHECK(fashion_mnist::overlap_percent(14, 10, 4) == doctest::Approx(0));
  CHECK(fashion_mnist::overlap_percent(15, 10, 4) == doctest::Approx(-25));
  CHECK(fashion_mnist::median({5, 1, 9, 2, 3}) == 3);
}
