#pragma once
// Elements for tests of reductions, as bytes, the same for the same seed.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"

namespace support {

inline constexpr std::array all_dtypes{dtrain::DType::f64,  dtrain::DType::f32, dtrain::DType::f16,
                                       dtrain::DType::bf16, dtrain::DType::i64, dtrain::DType::i32,
                                       dtrain::DType::u8,   dtrain::DType::u32, dtrain::DType::u64};
inline constexpr std::array all_ops{dtrain::ReduceOp::sum, dtrain::ReduceOp::average, dtrain::ReduceOp::min,
                                    dtrain::ReduceOp::max, dtrain::ReduceOp::product};

/// xorshift64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
  std::uint64_t operator()() {
    state_ ^= state_ << 13U;
    state_ ^= state_ >> 7U;
    state_ ^= state_ << 17U;
    return state_ * 0x2545f4914f6cdd1d;
  }

 private:
  std::uint64_t state_;
};

struct FloatLayout {
  int bits, digits;
};

/// Half of the values have an exponent near 1's, so that sums round; the rest is anything: NaN, infinities, zeros,
/// subnormals, the largest values, all of both signs, are frequent.
inline std::uint64_t awkward_float(FloatLayout layout, std::uint64_t random) {
  const std::uint64_t sign = (random & 1U) << (layout.bits - 1);
  const std::uint64_t digits = random >> 1U & ((std::uint64_t{1} << layout.digits) - 1);
  const int exponent_bits = layout.bits - 1 - layout.digits;
  const std::uint64_t top = (std::uint64_t{1} << exponent_bits) - 1;
  const std::uint64_t choice = random >> 59U;
  std::uint64_t exponent = top / 2 + (random >> 54U & 7U) - 4;  // 2^-4 to 2^3
  if (choice >= 28) {
    exponent = choice == 28 ? 0 : choice == 29 ? top - 1 : choice == 30 ? 1 : top;
  } else if (choice >= 16) {
    exponent = (random >> 54U) % top;
  }
  const bool no_digits = choice >= 28 && (random >> 53U & 1U) != 0;  // zero, infinity, a power of two
  return sign | exponent << layout.digits | (no_digits ? 0 : digits);
}

/// 1 to 2, of both signs: the sum of many is finite, and rounds. Of awkward values nearly every sum of 100 is a NaN or
/// an infinity, whatever is added.
inline std::uint64_t near_one(FloatLayout layout, std::uint64_t random) {
  const std::uint64_t sign = (random & 1U) << (layout.bits - 1);
  const std::uint64_t digits = random >> 1U & ((std::uint64_t{1} << layout.digits) - 1);
  const std::uint64_t exponent = (std::uint64_t{1} << (layout.bits - 2 - layout.digits)) - 1;
  return sign | exponent << layout.digits | digits;
}

/// @param make a float's bits from random ones; integers are any
template <class Make>
std::vector<std::byte> random_bytes(dtrain::DType dtype, std::size_t count, std::uint64_t seed, Make make) {
  const std::size_t width = dtrain::size_bytes(dtype);
  std::vector<std::byte> bytes(count * width);
  Random random(seed);
  for (std::size_t i = 0; i < bytes.size(); i += width) {
    std::uint64_t bits = random();
    switch (dtype) {
      case dtrain::DType::f64: bits = make(FloatLayout{64, 52}, bits); break;
      case dtrain::DType::f32: bits = make(FloatLayout{32, 23}, bits); break;
      case dtrain::DType::f16: bits = make(FloatLayout{16, 10}, bits); break;
      case dtrain::DType::bf16: bits = make(FloatLayout{16, 7}, bits); break;
      default: break;
    }
    std::memcpy(bytes.data() + i, &bits, width);  // little endian
  }
  return bytes;
}

inline std::vector<std::byte> awkward_bytes(dtrain::DType dtype, std::size_t count, std::uint64_t seed) {
  return random_bytes(dtype, count, seed, &awkward_float);
}

inline std::vector<std::byte> bytes_near_one(dtrain::DType dtype, std::size_t count, std::uint64_t seed) {
  return random_bytes(dtype, count, seed, &near_one);
}

}  // namespace support
