#include "overlap_probe.hpp"

#include "unit/examples/prelude.hpp"

TEST_CASE("communication is exposed or hidden, and neither is ever less than nothing") {
  const auto cost = [](double step, double no_sync, double communication_alone) {
    return fashion_mnist::communication_cost(step, no_sync, communication_alone);
  };
  CHECK(cost(10, 10, 4).exposed_ms == doctest::Approx(0));
  CHECK(cost(10, 10, 4).hidden_ms == doctest::Approx(4000));
  CHECK(cost(0.011, 0.010, 0.004).exposed_ms == doctest::Approx(1));
  CHECK(cost(0.011, 0.010, 0.004).hidden_ms == doctest::Approx(3));
  CHECK(cost(14, 10, 4).hidden_ms == doctest::Approx(0));
  CHECK(cost(27, 10, 4).exposed_ms == doctest::Approx(17000));  // 425% of it
  CHECK(cost(27, 10, 4).hidden_ms == 0);
  CHECK(cost(9, 10, 4).exposed_ms == 0);
  CHECK(cost(9, 10, 4).hidden_ms == doctest::Approx(4000));
  CHECK(shared::median({5, 1, 9, 2, 3}) == 3);
}
