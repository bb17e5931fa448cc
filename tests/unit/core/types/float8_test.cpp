#include "unit/core/prelude.hpp"

// Known at compile time.
static_assert(float8_e4m3(1.0F).bits == 0x38 && float8_e4m3(-2.0F).bits == 0xc0 && float8_e4m3(1000.0F).bits == 0x7e);
static_assert(float8_e5m2(1.0F).bits == 0x3c && static_cast<float>(float8_e5m2::from_bits(0xc0)) == -2.0F);
static_assert(dtrain::Element<float8_e4m3> && sizeof(float8_e4m3) == 1 && sizeof(float8_e5m2) == 1);

namespace {

/// The specification's tables, through powers of two, which are exact.
struct E4m3 {
  using Float8 = float8_e4m3;
  static constexpr int digits = 3, bias = 7, largest = 0x7e;
  static constexpr bool has_infinity = false;
};
struct E5m2 {
  using Float8 = float8_e5m2;
  static constexpr int digits = 2, bias = 15, largest = 0x7b;
  static constexpr bool has_infinity = true;
};

template <class Format>
double magnitude_of(int bits) {
  const int exponent = bits >> Format::digits;
  const int digits = bits & ((1 << Format::digits) - 1);
  if (bits > Format::largest) {
    return Format::has_infinity && digits == 0 ? std::numeric_limits<double>::infinity()
                                               : std::numeric_limits<double>::quiet_NaN();
  }
  return exponent == 0 ? std::ldexp(digits, 1 - Format::bias - Format::digits)
                       : std::ldexp(digits + (1 << Format::digits), exponent - Format::bias - Format::digits);
}

/// By search among all values: the nearest, of two the one whose last bit is 0; beyond the largest the largest.
template <class Format>
int nearest(double magnitude) {
  if (magnitude > magnitude_of<Format>(Format::largest)) return Format::largest;
  int best = 0;
  for (int bits = 1; bits <= Format::largest; ++bits) {
    const double here = std::fabs(magnitude_of<Format>(bits) - magnitude);
    const double there = std::fabs(magnitude_of<Format>(best) - magnitude);
    if (here < there || (here == there && bits % 2 == 0)) best = bits;
  }
  return best;
}

template <class Format>
void check_every_value() {
  using Float8 = typename Format::Float8;
  for (int i = 0; i <= 0xff; ++i) {
    CAPTURE(i);
    const auto bits = static_cast<std::uint8_t>(i);
    const auto value = static_cast<float>(Float8::from_bits(bits));
    const double magnitude = magnitude_of<Format>(i & 0x7f);
    if (std::isnan(magnitude)) {
      CHECK(std::isnan(value));
      CHECK(Float8(value).bits == 0x7f);
      continue;
    }
    CHECK(std::signbit(value) == (i >= 0x80));
    CHECK(static_cast<double>(std::fabs(value)) == magnitude);
    CHECK(Float8(value).bits == (std::isinf(magnitude) ? (i & 0x80) | Format::largest : i));
  }
}

template <class Format>
void check_halfway() {
  using Float8 = typename Format::Float8;
  for (int bits = 0; bits < Format::largest; ++bits) {
    CAPTURE(bits);
    const auto between =
        static_cast<float>((magnitude_of<Format>(bits) + magnitude_of<Format>(bits + 1)) / 2);  // exact
    const int even = bits % 2 == 0 ? bits : bits + 1;
    CHECK(Float8(between).bits == even);
    CHECK(Float8(-between).bits == (even | 0x80));
    CHECK(Float8(std::nextafter(between, 0.0F)).bits == bits);
    CHECK(Float8(std::nextafter(between, 1e9F)).bits == bits + 1);
  }
}

template <class Format>
void check_all_exponents() {
  std::size_t wrong = 0;
  for (std::uint32_t upper = 0; upper <= 0xfff; ++upper) {
    for (const std::uint32_t lower : {0x00000U, 0x00001U, 0x7ffffU, 0x80000U, 0x80001U, 0xfffffU}) {
      const float value = std::bit_cast<float>(upper << 20U | lower);
      if (std::isnan(value)) continue;
      const int sign = std::signbit(value) ? 0x80 : 0;
      wrong += typename Format::Float8(value).bits != (nearest<Format>(std::fabs(value)) | sign) ? 1 : 0;
    }
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("every float of 8 bits is its value as a float, and itself again") {
  check_every_value<E4m3>();
  check_every_value<E5m2>();
}

TEST_CASE("a float halfway between two of 8 bits becomes the even one, and beside it the nearer one") {
  check_halfway<E4m3>();
  check_halfway<E5m2>();
}

TEST_CASE("a float is rounded to the nearest of 8 bits, over all exponents") {
  check_all_exponents<E4m3>();
  check_all_exponents<E5m2>();
}

TEST_CASE("what is too large for 8 bits becomes the largest finite value, as in CUDA's types") {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(static_cast<float>(float8_e4m3(449.0F)) == 448);
  CHECK(static_cast<float>(float8_e4m3(480.0F)) == 448);
  CHECK(static_cast<float>(float8_e4m3(-infinity)) == -448);
  CHECK(static_cast<float>(float8_e5m2(1e30F)) == 57344);
  CHECK(static_cast<float>(float8_e5m2(infinity)) == 57344);
  CHECK(static_cast<float>(float8_e5m2::from_bits(0x7c)) == infinity);
}

TEST_CASE("spans of 8-bit floats are buffers") {
  std::vector<float8_e5m2> values(3);
  CHECK(dtrain::buffer_view(std::span<float8_e5m2>(values)).dtype == dtrain::DType::f8e5m2);
  CHECK(dtrain::buffer_view(std::span<float8_e5m2>(values)).bytes() == 3);
}
