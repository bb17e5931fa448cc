#include "examples/shared/learning_rate.hpp"

#include "unit/examples/prelude.hpp"

TEST_CASE("the learning rate rises, then falls to zero at the last step") {
  using shared::learning_rate;
  CHECK(learning_rate(0, 1000, 0.06F) == doctest::Approx(0.06 / 50));
  CHECK(learning_rate(49, 1000, 0.06F) == doctest::Approx(0.06));
  CHECK(learning_rate(524, 1000, 0.06F) == doctest::Approx(0.03));
  CHECK(learning_rate(999, 1000, 0.06F) == doctest::Approx(0.0));
  CHECK(learning_rate(0, 1, 0.06F) == doctest::Approx(0.0));  // a single step is the last one
}

TEST_CASE("the learning rate rises as long as the warm-up is, even where that is the whole training") {
  using shared::learning_rate;
  CHECK(learning_rate(0, 200, 0.06F, 0.1) == doctest::Approx(0.003));
  CHECK(learning_rate(19, 200, 0.06F, 0.1) == doctest::Approx(0.06));
  CHECK(learning_rate(109, 200, 0.06F, 0.1) == doctest::Approx(0.03));
  CHECK(learning_rate(199, 200, 0.06F, 0.1) == doctest::Approx(0.0));
  CHECK(learning_rate(19, 20, 0.06F, 1) == doctest::Approx(0.06));
  CHECK(learning_rate(9, 10, 0.06F, 2) == doctest::Approx(0.03));  // the training ends in the middle of the warm-up
}
