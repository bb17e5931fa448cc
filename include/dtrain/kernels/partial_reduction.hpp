#pragma once
/// @file
/// PartialReduction: one rank's step of an algorithm that passes partial results from rank to rank in messages.

#include <cstddef>
#include <span>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::kernels {

constexpr DType partial_type(DType dtype, ReduceOp op, Accumulate accumulate) noexcept {
  const bool half = dtype == DType::f16 || dtype == DType::bf16;
  if (half && accumulate == Accumulate::f32 && op != ReduceOp::min && op != ReduceOp::max) {
    return DType::f32;
  }
  const bool narrow_integer = dtype == DType::i32 || dtype == DType::u32 || dtype == DType::u8;
  return op == ReduceOp::average && narrow_integer ? DType::i64 : dtype;
}

/// Combines operands to a partial result, or in the last step to the result, of the elements' type. An operand is a
/// contribution (the elements of one rank, unchanged) or a partial result of other ranks, of type().
///
/// - Average of floats: each contribution is multiplied by the rounded 1 / ranks when it is first combined. Hence, up
///   to roundings, no partial result is larger than the largest contribution. Each product and each sum is rounded
///   once; for 16-bit floats this rounds to f32, and the combination is rounded once to type().
/// - Average of i32, u32 and u8: partial results are 64-bit sums; the result is the exact sum divided, truncated toward
///   zero. For i64 and u64, partial results are modulo 2^64, and the last combination's exact sum is divided.
/// - Other operations: as kernels::Reduction, rounded or taken modulo 2^bits to type() by every combination.
///
/// Threads: any; a value without state.
class PartialReduction {
 public:
  /// A contribution, or a partial result.
  struct Operand {
    const std::byte* data;
    bool is_partial;
  };

  /// @param ranks number of contributions in all
  PartialReduction(DType dtype, ReduceOp op, int ranks, Accumulate accumulate) noexcept;

  DType type() const noexcept { return type_; }
  bool widens() const noexcept { return type_ != dtype_; }

  /// Place for `count` contributions within memory for `count` partial results, so that they can be combined in place.
  std::byte* contributions_in(std::byte* memory, std::size_t count) const noexcept {
    return memory + count * (size_bytes(type_) - size_bytes(dtype_));
  }

  /// Combines two or more sources, from the left, to a partial result, or to the result if `last`. `target` is disjoint
  /// from all sources, or is one of them: a partial result, or contributions at contributions_in(target).
  void operator()(std::span<const Operand> sources, std::byte* target, std::size_t count, bool last) const noexcept;

  /// Combines the contributions of all ranks, in rank order, to the result: in one pass, as Reduction does, if there
  /// are at most Reduction::max_sources.
  void all(std::span<const std::byte* const> contributions, std::byte* target, std::size_t count) const noexcept;

  /// Converts one contribution to a partial result, for algorithms that combine by plain sums (or by the operation, if
  /// it is no average). `to` is `from`, if widens() is false, or disjoint.
  void begin(const std::byte* from, std::byte* to, std::size_t count) const noexcept;

  /// Converts the last partial result to the result. `to` is `from`, if widens() is false, or disjoint.
  void end(std::byte* from, std::byte* to, std::size_t count) const noexcept;

 private:
  static constexpr std::size_t max_at_once = 3;
  static constexpr std::size_t block = 512;  ///< elements, few enough to stay in the cache

  static double reciprocal_of(int ranks) noexcept;

  double weight_of(const Operand& source) const noexcept { return source.is_partial ? 1 : weight_; }

  /// Block after block in type(): reads a block before writing it, and no write reaches a later block.
  template <class SourceAt>
  void combine_in_blocks(std::size_t sources, SourceAt source_at, std::byte* target, std::size_t count,
                         bool last) const noexcept;

  DType dtype_;
  ReduceOp op_;
  DType type_;
  bool weighs_;
  Reduction combine_;
  Reduction last_;
  double weight_;
};

}  // namespace DTRAIN_NAMESPACE::kernels

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <array>

#include "dtrain/kernels/arithmetic/arithmetic.hpp"
#include "dtrain/kernels/conversion.hpp"
#include "dtrain/kernels/float_environment.hpp"

namespace DTRAIN_NAMESPACE::kernels {

template <class SourceAt>
void PartialReduction::combine_in_blocks(std::size_t sources, SourceAt source_at, std::byte* target, std::size_t count,
                                         bool last) const noexcept {
  const DefaultFloatEnvironment environment;
  alignas(64) std::byte sum[block * 8];
  alignas(64) std::byte widened[block * 8];
  const std::size_t target_width = size_bytes(last ? dtype_ : type_);
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t length = std::min(block, count - begin);
    const auto elements = [&](const Operand& source, std::byte* memory) {
      const std::byte* const from = source.data + begin * size_bytes(source.is_partial ? type_ : dtype_);
      if (source.is_partial || !widens()) {
        return from;
      }
      convert(dtype_, from, type_, memory, length);
      return static_cast<const std::byte*>(memory);
    };
    std::array<const std::byte*, 2> data{elements(source_at(0), sum), nullptr};
    std::array<double, 2> weights{weight_of(source_at(0)), 1};
    for (std::size_t k = 1; k < sources; ++k) {
      data[1] = elements(source_at(k), widened);
      weights[1] = weight_of(source_at(k));
      std::byte* const partial = sum;
      (last && k + 1 == sources ? last_ : combine_)(data, std::span(&partial, 1), length,
                                                    weighs_ ? weights.data() : nullptr);
      data[0] = sum;
      weights[0] = 1;
    }
    convert(type_, sum, last ? dtype_ : type_, target + begin * target_width, length);
  }
}

DTRAIN_DEFINED PartialReduction::PartialReduction(DType dtype, ReduceOp op, int ranks, Accumulate accumulate) noexcept
    : dtype_(dtype),
      op_(op),
      type_(partial_type(dtype, op, accumulate)),
      weighs_(op == ReduceOp::average && is_float(dtype)),
      combine_(weighs_ ? Reduction::weighted_sum(type_)
                       : Reduction::of(type_, op == ReduceOp::average ? ReduceOp::sum : op)),
      last_(weighs_ ? combine_ : Reduction::of(type_, op).over(static_cast<std::size_t>(ranks))),
      weight_(reciprocal_of(ranks)) {}

DTRAIN_DEFINED void PartialReduction::all(std::span<const std::byte* const> contributions, std::byte* target,
                                          std::size_t count) const noexcept {
  if (contributions.size() <= Reduction::max_sources) {
    Reduction::of(dtype_, op_)(contributions, std::span(&target, 1), count);
    return;
  }
  combine_in_blocks(
      contributions.size(),
      [&](std::size_t k) {
        return Operand{contributions[k], false};
      },
      target, count, true);
}

DTRAIN_DEFINED void PartialReduction::begin(const std::byte* from, std::byte* to, std::size_t count) const noexcept {
  const DefaultFloatEnvironment environment;
  if (widens() || (to != from && !weighs_)) {
    convert(dtype_, from, type_, to, count);
  }
  if (weighs_) {
    const std::byte* const contribution = widens() ? to : from;
    combine_(std::span(&contribution, 1), std::span(&to, 1), count, &weight_);
  }
}

DTRAIN_DEFINED void PartialReduction::end(std::byte* from, std::byte* to, std::size_t count) const noexcept {
  const DefaultFloatEnvironment environment;
  if (!weighs_) {
    const std::byte* const sum = from;
    last_(std::span(&sum, 1), std::span(&from, 1), count);  // divides an average of integers, copies other results
  }
  if (widens() || to != from) {
    convert(type_, from, dtype_, to, count);
  }
}

DTRAIN_DEFINED void PartialReduction::operator()(std::span<const Operand> sources, std::byte* target, std::size_t count,
                                                 bool last) const noexcept {
  if (widens() || sources.size() > max_at_once) {
    combine_in_blocks(
        sources.size(), [&](std::size_t k) { return sources[k]; }, target, count, last);
    return;
  }
  std::array<const std::byte*, max_at_once> data{};
  std::array<double, max_at_once> weights{};
  for (std::size_t k = 0; k < sources.size(); ++k) {
    data[k] = sources[k].data;
    weights[k] = weight_of(sources[k]);
  }
  (last ? last_ : combine_)(std::span(data).first(sources.size()), std::span(&target, 1), count,
                            weighs_ ? weights.data() : nullptr);
}

DTRAIN_DEFINED double PartialReduction::reciprocal_of(int ranks) noexcept {
  const DefaultFloatEnvironment environment;
  return reciprocal(static_cast<std::size_t>(ranks));
}

}  // namespace DTRAIN_NAMESPACE::kernels

#endif  // DTRAIN_DEFINITIONS
