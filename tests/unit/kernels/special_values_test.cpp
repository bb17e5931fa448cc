// The kernels' promises one by one, with numbers that a reader can check by hand.

#include "unit/kernels/prelude.hpp"

namespace {

/// `ranks[0] op ranks[1] ...` for elements given and returned as bits; repeated to fill blocks and a remainder.
template <class Bits>
Bits reduce(Isa isa, DType dtype, ReduceOp op, const std::vector<Bits>& ranks) {
  constexpr std::size_t count = 301;
  support::Ranks inputs;
  for (const Bits bits : ranks) {
    std::vector<std::byte> repeated(count * sizeof(Bits));
    for (std::size_t i = 0; i < count; ++i)
      std::memcpy(repeated.data() + i * sizeof(Bits), &bits, sizeof(Bits));
    inputs.push_back(repeated);
  }
  const std::vector<std::byte> result = support::reduce_bytes(Reduction::of(dtype, op, isa), inputs, count);
  Bits first = 0;
  std::memcpy(&first, result.data(), sizeof(first));
  for (std::size_t i = 0; i < count; ++i)
    CHECK((std::memcmp(result.data() + i * sizeof(Bits), &first, sizeof(Bits)) == 0));
  return first;
}

struct FloatBits {
  DType dtype;
  std::uint64_t nan, infinity, sign, one;
};
constexpr FloatBits f64{DType::f64, 0x7ff8000000000000, 0x7ff0000000000000, 0x8000000000000000, 0x3ff0000000000000};
constexpr FloatBits f32{DType::f32, 0x7fc00000, 0x7f800000, 0x80000000, 0x3f800000};
constexpr FloatBits f16{DType::f16, 0x7e00, 0x7c00, 0x8000, 0x3c00};
constexpr FloatBits bf16{DType::bf16, 0x7fc0, 0x7f80, 0x8000, 0x3f80};

std::uint64_t reduce(Isa isa, const FloatBits& type, ReduceOp op, const std::vector<std::uint64_t>& ranks) {
  const auto as = [&](auto bits) -> std::uint64_t {
    std::vector<decltype(bits)> narrow;
    for (const std::uint64_t rank : ranks)
      narrow.push_back(static_cast<decltype(bits)>(rank));
    return reduce(isa, type.dtype, op, narrow);
  };
  switch (dtrain::size_bytes(type.dtype)) {
    case 8: return as(std::uint64_t{});
    case 4: return as(std::uint32_t{});
    default: return as(std::uint16_t{});
  }
}

template <class Test>
void for_each_float(Test test) {
  support::for_each_isa([&](Isa isa) {
    for (const FloatBits& type : {f64, f32, f16, bf16}) {
      INFO(dtrain::name(type.dtype));
      test(isa, type);
    }
  });
}

constexpr ReduceOp all_ops[] = {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max, ReduceOp::product};

}  // namespace

TEST_CASE("a NaN on any rank, of any sign and payload, makes every operation's result the one canonical NaN") {
  for_each_float([](Isa isa, const FloatBits& type) {
    for (const ReduceOp op : all_ops) {
      for (const std::uint64_t nan : {type.nan, type.infinity + 1, type.sign | type.nan, type.sign - 1,
                                      type.sign | (type.infinity + 1), type.sign | (type.sign - 1)}) {
        CHECK(reduce(isa, type, op, {nan, type.one, type.one}) == type.nan);
        CHECK(reduce(isa, type, op, {type.one, nan, type.infinity}) == type.nan);
        CHECK(reduce(isa, type, op, {type.sign | type.infinity, type.one, nan}) == type.nan);
        CHECK(reduce(isa, type, op, {nan, nan}) == type.nan);
      }
    }
  });
}

TEST_CASE("a NaN that the operation makes is the canonical one too") {
  for_each_float([](Isa isa, const FloatBits& type) {
    const std::uint64_t minus_infinity = type.sign | type.infinity;
    CHECK(reduce(isa, type, ReduceOp::sum, {type.infinity, minus_infinity}) == type.nan);
    CHECK(reduce(isa, type, ReduceOp::average, {minus_infinity, type.infinity}) == type.nan);
    CHECK(reduce(isa, type, ReduceOp::product, {0, type.infinity}) == type.nan);
    CHECK(reduce(isa, type, ReduceOp::product, {minus_infinity, type.sign}) == type.nan);
  });
}

TEST_CASE("a single source is copied, a NaN's payload included") {
  for_each_float([](Isa isa, const FloatBits& type) {
    for (const ReduceOp op : all_ops)
      CHECK(reduce(isa, type, op, {type.sign | (type.infinity + 1)}) == (type.sign | (type.infinity + 1)));
  });
}

TEST_CASE("-0 is less than +0, and infinities are the ends") {
  for_each_float([](Isa isa, const FloatBits& type) {
    CHECK(reduce(isa, type, ReduceOp::min, {0, type.sign}) == type.sign);
    CHECK(reduce(isa, type, ReduceOp::min, {type.sign, 0}) == type.sign);
    CHECK(reduce(isa, type, ReduceOp::max, {0, type.sign}) == 0);
    CHECK(reduce(isa, type, ReduceOp::max, {type.sign, 0}) == 0);
    CHECK(reduce(isa, type, ReduceOp::max, {type.infinity - 1, type.infinity}) == type.infinity);
    CHECK(reduce(isa, type, ReduceOp::min, {type.sign | (type.infinity - 1), type.sign | type.infinity}) ==
          (type.sign | type.infinity));
    CHECK(reduce(isa, type, ReduceOp::max, {type.sign | 1, type.sign | 2}) == (type.sign | 1));
    CHECK(reduce(isa, type, ReduceOp::sum, {type.sign, type.sign}) == type.sign);
    CHECK(reduce(isa, type, ReduceOp::sum, {type.sign, 0}) == 0);
  });
}

TEST_CASE("subnormals are added exactly") {
  for_each_float([](Isa isa, const FloatBits& type) {
    CHECK(reduce(isa, type, ReduceOp::sum, {1, 2}) == 3);
    CHECK(reduce(isa, type, ReduceOp::sum, {type.sign | 5, 3}) == (type.sign | 2));
    CHECK(reduce(isa, type, ReduceOp::average, {3, 5}) == 4);
    CHECK(reduce(isa, type, ReduceOp::product, {type.one, 7}) == 7);
  });
}

TEST_CASE("beyond the largest value is infinity, from half a unit on") {
  for_each_float([](Isa isa, const FloatBits& type) {
    CHECK(reduce(isa, type, ReduceOp::sum, {type.infinity - 1, type.infinity - 1}) == type.infinity);
    CHECK(reduce(isa, type, ReduceOp::sum, {type.sign | (type.infinity - 1), type.sign | (type.infinity - 1)}) ==
          (type.sign | type.infinity));
  });
  support::for_each_isa([](Isa isa) {
    // 65504 + 16 is half a unit above the largest f16, a tie, which goes to the even neighbour; 65504 + 15 is below it.
    CHECK(reduce<std::uint16_t>(isa, DType::f16, ReduceOp::sum, {0x7bff, 0x4c00}) == 0x7c00);
    CHECK(reduce<std::uint16_t>(isa, DType::f16, ReduceOp::sum, {0x7bff, 0x4b80}) == 0x7bff);
  });
}

TEST_CASE("f16 and bf16 are accumulated in f32 and rounded once, to nearest even") {
  support::for_each_isa([](Isa isa) {
    // 1 + 2^-11 + 2^-11: rounded after each step it would stay 1.
    CHECK(reduce<std::uint16_t>(isa, DType::f16, ReduceOp::sum, {0x3c00, 0x1000, 0x1000}) == 0x3c01);
    CHECK(reduce<std::uint16_t>(isa, DType::bf16, ReduceOp::sum, {0x3f80, 0x3b80, 0x3b80}) == 0x3f81);
    // Ties: 1 + 2^-11 goes down to the even 1, 1 + 3 x 2^-11 up to the even 1 + 2^-9.
    CHECK(reduce<std::uint16_t>(isa, DType::f16, ReduceOp::sum, {0x3c00, 0x1000}) == 0x3c00);
    CHECK(reduce<std::uint16_t>(isa, DType::f16, ReduceOp::sum, {0x3c01, 0x1000}) == 0x3c02);
    CHECK(reduce<std::uint16_t>(isa, DType::bf16, ReduceOp::sum, {0x3f80, 0x3b80}) == 0x3f80);
    CHECK(reduce<std::uint16_t>(isa, DType::bf16, ReduceOp::sum, {0x3f81, 0x3b80}) == 0x3f82);
    // A sum beyond f16's range whose average is within it: 4 x 65504 / 4.
    CHECK(reduce<std::uint16_t>(isa, DType::f16, ReduceOp::average, {0x7bff, 0x7bff, 0x7bff, 0x7bff}) == 0x7bff);
  });
}

TEST_CASE("an order that matters is from the left") {
  support::for_each_isa([](Isa isa) {
    // 2^24 + 1 is 2^24 in f32, so from the left the ones are lost; from the right they are not.
    CHECK(reduce<std::uint32_t>(isa, DType::f32, ReduceOp::sum, {0x4b800000, 0x3f800000, 0x3f800000}) == 0x4b800000);
    CHECK(reduce<std::uint32_t>(isa, DType::f32, ReduceOp::sum, {0x3f800000, 0x3f800000, 0x4b800000}) == 0x4b800001);
  });
}

TEST_CASE("integers wrap in sums and products, and average exactly, truncated toward zero") {
  support::for_each_isa([](Isa isa) {
    CHECK(reduce<std::uint8_t>(isa, DType::u8, ReduceOp::sum, {200, 100}) == 44);
    CHECK(reduce<std::uint8_t>(isa, DType::u8, ReduceOp::average, {200, 101}) == 150);
    CHECK(reduce<std::uint8_t>(isa, DType::u8, ReduceOp::product, {16, 17}) == 16);
    CHECK(reduce<std::uint8_t>(isa, DType::u8, ReduceOp::max, {127, 128, 3}) == 128);
    CHECK(reduce<std::uint8_t>(isa, DType::u8, ReduceOp::min, {255, 127, 128}) == 127);
    CHECK(reduce<std::uint32_t>(isa, DType::u32, ReduceOp::max, {INT32_MAX, 0x80000000U}) == 0x80000000U);
    CHECK(reduce<std::uint32_t>(isa, DType::u32, ReduceOp::average, {UINT32_MAX, UINT32_MAX - 2}) == UINT32_MAX - 1);
    CHECK(reduce<std::uint64_t>(isa, DType::u64, ReduceOp::min, {UINT64_MAX, 3}) == 3);
    CHECK(reduce<std::uint64_t>(isa, DType::u64, ReduceOp::average, {UINT64_MAX, UINT64_MAX, UINT64_MAX}) ==
          UINT64_MAX);
    CHECK(reduce<std::uint64_t>(isa, DType::u64, ReduceOp::sum, {UINT64_MAX, 2}) == 1);
    CHECK(reduce<std::int32_t>(isa, DType::i32, ReduceOp::sum, {INT32_MAX, 1}) == INT32_MIN);
    CHECK(reduce<std::int32_t>(isa, DType::i32, ReduceOp::average, {INT32_MAX, INT32_MAX - 2}) == INT32_MAX - 1);
    CHECK(reduce<std::int32_t>(isa, DType::i32, ReduceOp::average, {-4, -3}) == -3);
    CHECK(reduce<std::int64_t>(isa, DType::i64, ReduceOp::average, {INT64_MIN, INT64_MIN, INT64_MIN}) == INT64_MIN);
    CHECK(reduce<std::int64_t>(isa, DType::i64, ReduceOp::sum, {INT64_MIN, -1}) == INT64_MAX);
    CHECK(reduce<std::int64_t>(isa, DType::i64, ReduceOp::min, {INT64_MAX, INT64_MIN, 0}) == INT64_MIN);
    CHECK(reduce<std::int64_t>(isa, DType::i64, ReduceOp::max, {INT64_MIN, -1}) == -1);
    CHECK(reduce<std::int32_t>(isa, DType::i32, ReduceOp::max, {INT32_MAX, INT32_MIN}) == INT32_MAX);
  });
}
