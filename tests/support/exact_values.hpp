#pragma once
/// @file
/// Inputs whose reductions do not round, so that every order of the ranks gives the same bits.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "dtrain/core/types/dtype.hpp"

namespace support {

/// 1 and 2 in turns, other turns on each rank: no reduction of them rounds but an average of a number of ranks that is
/// no power of two.
template <class T>
std::vector<std::byte> ones_and_twos(std::size_t count, int rank, T one, T two) {
  std::vector<std::byte> bytes(count * sizeof(T));
  for (std::size_t i = 0; i < count; ++i) {
    const T value = (i + static_cast<std::size_t>(rank)) % 3 == 0 ? two : one;
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

/// The same of any type.
inline std::vector<std::byte> exact_values(dtrain::DType dtype, std::size_t count, int rank) {
  using dtrain::DType;
  switch (dtype) {
    case DType::f64: return ones_and_twos(count, rank, 1.0, 2.0);
    case DType::f32: return ones_and_twos(count, rank, 1.0F, 2.0F);
    case DType::f16: return ones_and_twos<std::uint16_t>(count, rank, 0x3c00, 0x4000);
    case DType::bf16: return ones_and_twos<std::uint16_t>(count, rank, 0x3f80, 0x4000);
    case DType::i64:
    case DType::u64: return ones_and_twos<std::int64_t>(count, rank, 1, 2);
    case DType::i32:
    case DType::u32: return ones_and_twos<std::int32_t>(count, rank, 1, 2);
    default: return ones_and_twos<std::uint8_t>(count, rank, 1, 2);
  }
}

}  // namespace support
