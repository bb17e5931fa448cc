#include "examples/shared/learning_rate.hpp"

#include <doctest/doctest.h>

TEST_CASE("the learning rate rises, then falls to zero at the last step") {
  using shared::learning_rate;
  CHECK(learning_rate(0, 1000, 0.06F) == doctest::Approx(0.06 / 50));
  CHECK(learning_rate(49, 1000, 0.06F) == doctest::Approx(0.06));
  CHECK(learning_rate(524, 1000, 0.06F) == doctest::Approx(0.03));
  CHECK(learning_rate(999, 1000, 0.06F) == doctest::Approx(0.0));
  CHECK(learning_rate(0, 1, 0.06F) == doctest::Approx(0.0));  // a single step is the last one
}
