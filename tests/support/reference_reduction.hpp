#pragma once
/// @file
/// What an all-reduce is to give, bit by bit: a plain loop over the ranks in ascending order.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "dtrain/core/types/reduce_op.hpp"

namespace support {

template <class T>
T combine(dtrain::ReduceOp op, T a, T b) {
  switch (op) {
    case dtrain::ReduceOp::sum:
    case dtrain::ReduceOp::average: return a + b;
    case dtrain::ReduceOp::min: return b < a || b != b ? b : a;
    case dtrain::ReduceOp::max: return b > a || b != b ? b : a;
    case dtrain::ReduceOp::product: return a * b;
  }
  return a;
}

/// Element by element over `inputs[rank]`.
template <class T>
std::vector<T> reference_reduction(dtrain::ReduceOp op, const std::vector<std::vector<T>>& inputs) {
  std::vector<T> result = inputs[0];
  for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
    for (std::size_t i = 0; i < result.size(); ++i)
      result[i] = combine(op, result[i], inputs[rank][i]);
  }
  if (op == dtrain::ReduceOp::average) {
    for (T& value : result)
      value *= T(1) / static_cast<T>(inputs.size());
  }
  return result;
}

/// Values whose sum depends on the order: magnitudes from 2^-10 to 2^10, both signs. The same for the same arguments.
template <class T>
std::vector<T> awkward_values(std::size_t count, std::uint64_t seed) {
  std::vector<T> values(count);
  std::uint64_t state = seed * 0x9e37'79b9'7f4a'7c15U + 1;
  for (T& value : values) {
    state ^= state << 13U;
    state ^= state >> 7U;
    state ^= state << 17U;
    const T mantissa = T(1) + static_cast<T>(state % 1000003) / T(1000003);
    const int exponent = static_cast<int>((state >> 32U) % 21) - 10;
    T scaled = mantissa;
    for (int i = 0; i < exponent; ++i)
      scaled *= T(2);
    for (int i = 0; i > exponent; --i)
      scaled /= T(2);
    value = (state >> 60U) % 2 == 0 ? scaled : -scaled;
  }
  return values;
}

/// The input of each rank of an operation.
template <class T>
std::vector<std::vector<T>> awkward_inputs(int ranks, std::size_t count, std::uint64_t seed) {
  std::vector<std::vector<T>> inputs;
  for (int rank = 0; rank < ranks; ++rank)
    inputs.push_back(awkward_values<T>(count, seed * 1000 + static_cast<std::uint64_t>(rank)));
  return inputs;
}

template <class T>
bool same_bits(const T* a, const std::vector<T>& b) {
  return b.empty() || std::memcmp(a, b.data(), b.size() * sizeof(T)) == 0;
}

}  // namespace support
