#include "sgd.hpp"

#include <doctest/doctest.h>

#include <span>

TEST_CASE("the learning rate rises, then falls to zero at the last step") {
  using fashion_mnist::learning_rate;
  CHECK(learning_rate(0, 1000, 0.06F) == doctest::Approx(0.06 / 50));
  CHECK(learning_rate(49, 1000, 0.06F) == doctest::Approx(0.06));
  CHECK(learning_rate(524, 1000, 0.06F) == doctest::Approx(0.03));
  CHECK(learning_rate(999, 1000, 0.06F) == doctest::Approx(0.0));
  CHECK(learning_rate(0, 1, 0.06F) == doctest::Approx(0.0));  // a single step is the last one
}

TEST_CASE("a step of gradient descent follows Nesterov's formula") {
  float value[2] = {1, -1};
  float gradient[2] = {0.5F, 2};
  const dtrain::Parameter parameter{"p", dtrain::tensor_view(value, {2}), dtrain::tensor_view(gradient, {2})};
  fashion_mnist::Sgd sgd(0.5F);
  sgd.step(std::span(&parameter, 1), 0.1F);  // v = g; value -= 0.1 (g + 0.5 g)
  CHECK(value[0] == doctest::Approx(1 - 0.1 * 0.75));
  CHECK(value[1] == doctest::Approx(-1 - 0.1 * 3));
  gradient[0] = gradient[1] = 0;
  sgd.step(std::span(&parameter, 1), 0.1F);  // v = 0.5 v; value -= 0.1 (0.5 v)
  CHECK(value[0] == doctest::Approx(1 - 0.1 * 0.75 - 0.1 * 0.125));
  CHECK(value[1] == doctest::Approx(-1 - 0.1 * 3 - 0.1 * 0.5));
}
