#pragma once
// Elements at half of the largest value of their type, of which three overflow in a sum.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "support/scalar_reduction.hpp"

namespace support {

template <class T>
std::vector<std::byte> repeated(T value, std::size_t count) {
  std::vector<std::byte> bytes(count * sizeof(T));
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  return bytes;
}

/// Of i64 and u64, whose averages wrap where the sum does, a 16th: the sum of ten holds.
inline std::vector<std::byte> large_values(dtrain::DType dtype, std::size_t count) {
  switch (dtype) {
    case dtrain::DType::f64: return repeated(std::numeric_limits<double>::max() / 2, count);
    case dtrain::DType::f32: return repeated(std::numeric_limits<float>::max() / 2, count);
    case dtrain::DType::f16: return repeated<std::uint16_t>(0x77ff, count);
    case dtrain::DType::bf16: return repeated<std::uint16_t>(0x7eff, count);
    case dtrain::DType::i64: return repeated(std::numeric_limits<std::int64_t>::max() / 16, count);
    case dtrain::DType::u64: return repeated(std::numeric_limits<std::uint64_t>::max() / 16, count);
    case dtrain::DType::u32: return repeated(std::numeric_limits<std::uint32_t>::max() / 2, count);
    case dtrain::DType::i32: return repeated(std::numeric_limits<std::int32_t>::max() / 2, count);
    default: return repeated<std::uint8_t>(127, count);
  }
}

/// Whether `bytes` are large_values, floats to within `roundings` half units in the last place of their type.
inline bool is_large_value(dtrain::DType dtype, const std::vector<std::byte>& bytes, int roundings) {
  const std::vector<std::byte> expected = large_values(dtype, bytes.size() / dtrain::size_bytes(dtype));
  bool right = bytes == expected;
  with_element(dtype, [&]<class Element>(Element) {
    if constexpr (FloatFormat<Element>) {
      using Bits = typename Element::Bits;
      right = true;
      for (std::size_t i = 0; i < bytes.size() && right; i += sizeof(Bits)) {
        Bits is = 0;
        Bits should = 0;
        std::memcpy(&is, bytes.data() + i, sizeof(Bits));
        std::memcpy(&should, expected.data() + i, sizeof(Bits));
        const auto value = static_cast<long double>(Element::value(should));
        const long double difference = std::fabs(static_cast<long double>(Element::value(is)) - value);
        right = difference <= value * std::ldexp(static_cast<long double>(roundings), -Element::digits - 1);  // no NaN
      }
    }
  });
  return right;
}

}  // namespace support
