#pragma once
/// @file
/// Integer sums, averages and products for instruction_sets/; minimum and maximum of all types, by comparing integers.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "dtrain/core/config.hpp"
#include "dtrain/kernels/kernel_arguments.hpp"
#include "dtrain/kernels/vector.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// The sum modulo 2^bits. `Lane` is unsigned and also serves the signed type.
template <class Lane, std::size_t Width>
struct IntegerSum {
  static constexpr std::size_t bytes = Width;
  using Partial = Vector<Lane, Width>;
  using Result = Partial;
  static constexpr bool averages = false;

  DTRAIN_ALWAYS_INLINE explicit IntegerSum(const KernelArguments& /*nothing varies*/) noexcept {}
  DTRAIN_ALWAYS_INLINE void start(Partial& partial, const std::byte* from, std::size_t /*source*/) const noexcept {
    load(partial, from);
  }
  DTRAIN_ALWAYS_INLINE void combine(Partial& partial, const std::byte* from, std::size_t /*source*/) const noexcept {
    Partial value;
    load(value, from);
    partial = partial + value;
  }
  DTRAIN_ALWAYS_INLINE void finish(Result& result, Partial& partial) const noexcept { result = partial; }
  DTRAIN_ALWAYS_INLINE void put(std::byte* to, const Result& result) const noexcept { store(to, result); }
};

/// At any alignment.
template <class T>
T element(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

/// The product modulo 2^bits, one element after the other, because training does not use it.
template <class Unsigned>
DTRAIN_OPTIMIZED void integer_product(const KernelArguments& arguments) noexcept {
  for (std::size_t i = 0; i < arguments.bytes; i += sizeof(Unsigned)) {
    std::uint64_t product = 1;
    for (std::size_t rank = 0; rank < arguments.source_count; ++rank) {
      product *= element<Unsigned>(arguments.sources[rank] + i);
    }
    const auto result = static_cast<Unsigned>(product);
    for (std::size_t target = 0; target < arguments.target_count; ++target) {
      std::memcpy(arguments.targets[target] + i, &result, sizeof(result));
    }
  }
}

/// The exact sum, which fits `Wide`, divided by KernelArguments::divisor and truncated toward zero.
template <class Integer, class Wide>
DTRAIN_OPTIMIZED void integer_average(const KernelArguments& arguments) noexcept {
  for (std::size_t i = 0; i < arguments.bytes; i += sizeof(Integer)) {
    Wide sum = 0;
    for (std::size_t rank = 0; rank < arguments.source_count; ++rank) {
      sum += element<Integer>(arguments.sources[rank] + i);
    }
    const auto result = static_cast<Integer>(sum / static_cast<Wide>(arguments.divisor));
    for (std::size_t target = 0; target < arguments.target_count; ++target) {
      std::memcpy(arguments.targets[target] + i, &result, sizeof(result));
    }
  }
}

__extension__ typedef __int128 WideInteger;  // without __extension__, -Wpedantic warns

/// Converts elements to keys that are ordered as signed integers. One loop therefore does min and max, for f16 and bf16
/// too, without conversion; the differences are in KernelArguments::key.
/// - Floats: a negative value has the bits below its sign inverted, so that -0 < +0; NaN is the greatest key. This is
///   minimum and maximum of IEEE 754-2019.
/// - Unsigned integers: the highest bit is inverted.
/// - For min, all keys but NaN's are inverted.
template <class Lane, std::size_t Width>
class MinMax {
 public:
  static constexpr std::size_t bytes = Width;
  using Partial = Vector<Lane, Width>;
  using Result = Partial;
  static constexpr bool averages = false;

  DTRAIN_ALWAYS_INLINE explicit MinMax(const KernelArguments& arguments) noexcept {
    fill<Lane, Width>(flip_, static_cast<Lane>(arguments.key.flip));
    fill<Lane, Width>(magnitude_, static_cast<Lane>(arguments.key.magnitude));
    fill<Lane, Width>(infinity_, static_cast<Lane>(arguments.key.infinity));
    fill<Lane, Width>(greatest_, static_cast<Lane>(arguments.key.greatest));
    fill<Lane, Width>(greatest_key_, greatest_key);
  }
  DTRAIN_ALWAYS_INLINE void start(Partial& partial, const std::byte* from, std::size_t /*source*/) const noexcept {
    Partial value;
    load(value, from);
    partial = value ^ ((Partial)(value < Partial{}) & magnitude_) ^ flip_;
    replace_where(partial, (Partial)((value & greatest_key_) > infinity_), greatest_key_);
  }
  DTRAIN_ALWAYS_INLINE void combine(Partial& partial, const std::byte* from, std::size_t source) const noexcept {
    Partial value;
    start(value, from, source);
    replace_where(partial, (Partial)(value > partial), value);
  }
  DTRAIN_ALWAYS_INLINE void finish(Result& result, Partial& partial) const noexcept {
    result = partial ^ flip_;
    result = result ^ ((Partial)(result < Partial{}) & magnitude_);
    replace_where(result, (Partial)(partial == greatest_key_), greatest_);
  }
  DTRAIN_ALWAYS_INLINE void put(std::byte* to, const Result& result) const noexcept { store(to, result); }

 private:
  static constexpr Lane greatest_key = std::numeric_limits<Lane>::max();

  Partial flip_, magnitude_, infinity_, greatest_, greatest_key_;
};

}  // namespace DTRAIN_NAMESPACE::kernels
