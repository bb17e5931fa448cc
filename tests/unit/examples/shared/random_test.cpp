#include "examples/shared/random.hpp"

#include "unit/examples/prelude.hpp"

TEST_CASE("the random numbers are SplitMix64's published ones") {
  shared::SplitMix64 random(1234567);
  CHECK(random.next() == 6457827717110365317U);
  CHECK(random.next() == 3203168211198807973U);
  CHECK(random.next() == 9817491932198370423U);
}

TEST_CASE("symmetric random numbers stay within [-1, 1) and have mean 0") {
  shared::SplitMix64 random(1);
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const float value = random.symmetric();
    REQUIRE(value >= -1.0F);
    REQUIRE(value < 1.0F);
    sum += static_cast<double>(value);
  }
  CHECK(sum / 10000 == doctest::Approx(0).epsilon(0.03));
}
