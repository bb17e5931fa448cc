// All 65,536 values of f16 and bf16 through the kernels' conversions.

#include "unit/kernels/prelude.hpp"

namespace {

constexpr std::size_t all = 65'536;

/// Every value `op` the same second one.
std::vector<std::uint16_t> every_value(Isa isa, DType dtype, ReduceOp op, std::uint16_t second) {
  std::vector<std::uint16_t> values(all);
  std::vector<std::uint16_t> others(all, second);
  for (std::size_t i = 0; i < all; ++i)
    values[i] = static_cast<std::uint16_t>(i);
  const std::byte* const sources[] = {reinterpret_cast<const std::byte*>(values.data()),
                                      reinterpret_cast<const std::byte*>(others.data())};
  std::byte* const target = reinterpret_cast<std::byte*>(values.data());
  Reduction::of(dtype, op, isa)(sources, std::span(&target, 1), all);
  return values;
}

void check_identity(DType dtype, std::uint16_t infinity, std::uint16_t nan, std::uint16_t one) {
  support::for_each_isa([&](Isa isa) {
    // What leaves every value as it is, -0 included.
    const std::vector<std::uint16_t> plus_minus_zero = every_value(isa, dtype, ReduceOp::sum, 0x8000);
    const std::vector<std::uint16_t> times_one = every_value(isa, dtype, ReduceOp::product, one);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < all; ++i) {
      const auto expected = (i & 0x7fff) > infinity ? nan : static_cast<std::uint16_t>(i);
      wrong += plus_minus_zero[i] != expected || times_one[i] != expected ? 1 : 0;
    }
    CHECK(wrong == 0);
  });
}

}  // namespace

TEST_CASE("every f16 becomes f32 and itself again") {
  check_identity(DType::f16, 0x7c00, 0x7e00, 0x3c00);
}

TEST_CASE("every bf16 becomes f32 and itself again") {
  check_identity(DType::bf16, 0x7f80, 0x7fc0, 0x3f80);
}

TEST_CASE("the kernels round as float16 and bfloat16 do") {
  support::for_each_isa([&](Isa isa) {
    std::size_t wrong = 0;
    for (const unsigned operand : {0x0001U, 0x0401U, 0x1400U, 0x2c01U, 0x3555U, 0x3bffU, 0x5801U, 0xb555U, 0xfbffU}) {
      const auto second = static_cast<std::uint16_t>(operand);
      const std::vector<std::uint16_t> f16 = every_value(isa, DType::f16, ReduceOp::sum, second);
      const std::vector<std::uint16_t> bf16 = every_value(isa, DType::bf16, ReduceOp::product, second);
      for (std::size_t i = 0; i < all; ++i) {
        const auto bits = static_cast<std::uint16_t>(i);
        using dtrain::bfloat16;
        using dtrain::float16;
        const float sum = static_cast<float>(float16::from_bits(bits)) + static_cast<float>(float16::from_bits(second));
        const float product =
            static_cast<float>(bfloat16::from_bits(bits)) * static_cast<float>(bfloat16::from_bits(second));
        wrong += f16[i] != float16(sum).bits || bf16[i] != bfloat16(product).bits ? 1 : 0;
      }
    }
    CHECK(wrong == 0);
  });
}
