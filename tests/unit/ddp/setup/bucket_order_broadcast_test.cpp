#include "unit/ddp/prelude.hpp"

namespace {

/// What rank 1 makes of `bytes` as rank 0's order of three parameters.
std::vector<std::size_t> order_of_three(const std::string& bytes) {
  const auto job = std::make_shared<FakeJob>(2);
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  FakeStore(job, 0).set("ddp/1/order/0", bytes, deadline).wait();
  return read_order_blocking(*support::FakeGroupHandle::of(job, 1, 2), "ddp/1/", 3, deadline);
}

const std::string two_zero_one("\2\0\0\0\0\0\0\0\1\0\0\0", 12);

}  // namespace

TEST_CASE("rank 0's order is read as it was published") {
  CHECK(order_of_three(two_zero_one) == std::vector<std::size_t>{2, 0, 1});
  CHECK(order_of_three(std::string("\0\0\1\0", 4) + two_zero_one.substr(4)) == std::vector<std::size_t>{65536, 0, 1});
}

TEST_CASE("an order with an entry too few or too many is refused") {
  for (const std::size_t length : {0U, 4U, 8U, 11U, 13U, 16U, 20U}) {
    CAPTURE(length);
    const std::string bytes = (two_zero_one + two_zero_one).substr(0, length);
    CHECK_THROWS_WITH_AS(
        order_of_three(bytes),
        ("rank 0's order of parameters has " + std::to_string(length) + " bytes, not 12; do both run the same program?")
            .c_str(),
        dtrain::Error);
  }
}
