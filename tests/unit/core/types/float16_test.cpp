#include "support/scalar_reduction.hpp"
#include "unit/core/prelude.hpp"

// Known at compile time.
static_assert(float16(1.0F).bits == 0x3c00 && float16(-2.0F).bits == 0xc000 && float16(65520.0F).bits == 0x7c00);
static_assert(static_cast<float>(float16::from_bits(1)) == 0x1p-24F && float16(0x1p-25F).bits == 0);
static_assert(bfloat16(1.0F).bits == 0x3f80 && static_cast<float>(bfloat16::from_bits(0xc000)) == -2.0F);
static_assert(dtrain::Element<float16> && dtrain::Element<bfloat16> && sizeof(float16) == 2 && sizeof(bfloat16) == 2);

TEST_CASE("every float16 and bfloat16 is its value as a float, and itself again") {
  std::size_t wrong = 0;
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const auto half = static_cast<float>(float16::from_bits(bits));
    const auto brain = static_cast<float>(bfloat16::from_bits(bits));
    if (half == half) {
      wrong += support::F32::bits(half) != support::F32::bits(support::F16::value(bits)) ? 1 : 0;
      wrong += float16(half).bits != bits ? 1 : 0;
    } else {
      wrong += float16(half).bits != 0x7e00 || (bits & 0x7fffU) <= 0x7c00 ? 1 : 0;
    }
    if (brain == brain) {
      wrong += support::F32::bits(brain) != support::F32::bits(support::Bf16::value(bits)) ? 1 : 0;
      wrong += bfloat16(brain).bits != bits ? 1 : 0;
    } else {
      wrong += bfloat16(brain).bits != 0x7fc0 || (bits & 0x7fffU) <= 0x7f80 ? 1 : 0;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("a float is rounded to nearest even, over all exponents") {
  std::size_t wrong = 0;
  for (std::uint32_t upper = 0; upper <= 0xffff; ++upper) {
    for (const std::uint32_t lower :
         {0x0000U, 0x0001U, 0x0fffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const float value = std::bit_cast<float>(upper << 16U | lower);
      if (value == value) {
        wrong += float16(value).bits != support::F16::bits(value) ? 1 : 0;
        wrong += bfloat16(value).bits != support::Bf16::bits(value) ? 1 : 0;
      }
    }
  }
  CHECK(wrong == 0);
}

namespace {

/// As a user's own: the 16 bits and nothing else.
struct TheirHalf {
  unsigned short x;
};

}  // namespace

template <>
struct dtrain::dtype_of<TheirHalf> : std::integral_constant<dtrain::DType, dtrain::DType::f16> {};

TEST_CASE("a half type of the user's own becomes an element by one line") {
  static_assert(dtrain::Element<TheirHalf>);
  std::vector<TheirHalf> values(3);
  CHECK(dtrain::buffer_view(std::span<TheirHalf>(values)).dtype == dtrain::DType::f16);
  CHECK(dtrain::buffer_view(std::span<TheirHalf>(values)).bytes() == 6);
}
