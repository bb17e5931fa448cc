#include "sgd.hpp"

#include "unit/examples/prelude.hpp"

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

TEST_CASE("an optimizer that was given another one's velocities goes on as that one does") {
  float values[2][2] = {{1, -1}, {1, -1}};
  float gradient[2] = {0.5F, 2};
  const auto parameter = [&](int k) {
    return dtrain::Parameter{"p", dtrain::tensor_view(values[k], {2}), dtrain::tensor_view(gradient, {2})};
  };
  const dtrain::Parameter one = parameter(0);
  const dtrain::Parameter other = parameter(1);
  fashion_mnist::Sgd first(0.5F);
  fashion_mnist::Sgd second(0.5F);
  first.step(std::span(&one, 1), 0.1F);
  const std::vector<dtrain::NamedTensor> kept = first.velocities(std::span(&one, 1));
  const std::vector<dtrain::NamedTensor> empty = second.velocities(std::span(&other, 1));
  REQUIRE(kept.size() == 1);
  CHECK(kept[0].name == "p.velocity");
  CHECK(empty[0].value.as<float>()[0] == 0);
  std::copy_n(kept[0].value.data, kept[0].value.bytes(), empty[0].value.data);
  std::copy_n(values[0], 2, values[1]);
  first.step(std::span(&one, 1), 0.1F);
  second.step(std::span(&other, 1), 0.1F);
  CHECK(values[0][0] == values[1][0]);
  CHECK(values[0][1] == values[1][1]);
}
