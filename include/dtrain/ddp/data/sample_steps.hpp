#pragma once
/// @file
/// SampleSteps: the samples of each step of an epoch, in a fixed number of micro-batches, whatever the number of ranks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Iterates over the elements of a range that has operator[], whose results are values. Lifetime: the range's.
template <class Range, class Value>
class IndexIterator {
 public:
  using iterator_category = std::input_iterator_tag;  // operator* returns a value
  using iterator_concept = std::forward_iterator_tag;
  using value_type = Value;
  using difference_type = std::ptrdiff_t;
  using pointer = const value_type*;
  using reference = value_type;

  IndexIterator() noexcept = default;
  IndexIterator(const Range* range, std::size_t index) noexcept : range_(range), index_(index) {}

  value_type operator*() const { return (*range_)[index_]; }
  IndexIterator& operator++() {
    ++index_;
    return *this;
  }
  IndexIterator operator++(int) { return {range_, index_++}; }
  friend bool operator==(const IndexIterator&, const IndexIterator&) = default;

 private:
  const Range* range_ = nullptr;
  std::size_t index_ = 0;
};

/// The most micro-batches of a step.
inline constexpr std::size_t most_micro_batches = 4096;

/// A part of a step's samples, which one rank computes.
/// @ingroup checkpoints
struct MicroBatch {
  std::span<const std::size_t> samples;  ///< indices into the data set; lifetime: the SampleSteps'
  std::size_t number = 0;                ///< 0, 1, ... in the step
  /// For the pass's random numbers (dropout): depends on the sampler's seed, the epoch, the step and the number, and
  /// not on the rank.
  std::uint64_t seed = 0;
};

/// The samples of one step. Lifetime: the SampleSteps'.
/// @ingroup checkpoints
class SampleStep {
 public:
  SampleStep(std::span<const std::size_t> samples, std::size_t micro_batches, std::uint64_t seed) noexcept
      : samples_(samples), micro_batches_(micro_batches), seed_(seed) {}

  /// All samples of the step, in the order of its micro-batches.
  std::span<const std::size_t> samples() const noexcept { return samples_; }
  std::size_t micro_batches() const noexcept { return micro_batches_; }

  /// Micro-batch `number`, which is below micro_batches(). With V micro-batches of L samples it has the positions from
  /// ceil(L v / V) to ceil(L (v + 1) / V): the sizes differ by one at most, and number 0 is never empty.
  MicroBatch operator[](std::size_t number) const noexcept;

 private:
  std::span<const std::size_t> samples_;
  std::size_t micro_batches_;
  std::uint64_t seed_;
};

/// The steps of an epoch, the same on every rank.
/// @ingroup checkpoints
class SampleSteps {
 public:
  /// @param order samples of all steps @param step_samples of each step but the last, which has the rest; at least 1
  SampleSteps(std::vector<std::size_t> order, std::size_t step_samples, std::size_t micro_batches,
              std::uint64_t seed) noexcept
      : order_(std::move(order)), step_samples_(step_samples), micro_batches_(micro_batches), seed_(seed) {}

  using Iterator = IndexIterator<SampleSteps, SampleStep>;

  std::size_t size() const noexcept { return (order_.size() + step_samples_ - 1) / step_samples_; }

  /// Step `step`, which is below size().
  SampleStep operator[](std::size_t step) const noexcept;

  Iterator begin() const noexcept { return {this, 0}; }
  Iterator end() const noexcept { return {this, size()}; }

 private:
  std::vector<std::size_t> order_;
  std::size_t step_samples_;
  std::size_t micro_batches_;
  std::uint64_t seed_;
};

/// The finaliser of SplitMix64: a bijection of 64-bit numbers whose output bits all depend on all input bits.
/// Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators" (OOPSLA 2014); Vigna's splitmix64.c.
constexpr std::uint64_t mix64(std::uint64_t value) noexcept {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::MicroBatch;
using ddp::SampleStep;
using ddp::SampleSteps;
}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED MicroBatch SampleStep::operator[](std::size_t number) const noexcept {
  // ceil(L v / V) without the product, which might overflow.
  const auto begin_of = [this](std::size_t v) {
    const std::size_t whole = samples_.size() / micro_batches_, rest = samples_.size() % micro_batches_;
    return whole * v + (rest * v + micro_batches_ - 1) / micro_batches_;
  };
  const std::size_t begin = begin_of(number);
  return {samples_.subspan(begin, begin_of(number + 1) - begin), number, mix64(seed_ + number)};
}

DTRAIN_DEFINED SampleStep SampleSteps::operator[](std::size_t step) const noexcept {
  const std::size_t begin = step * step_samples_;
  const std::span<const std::size_t> all(order_);
  return {all.subspan(begin, std::min(step_samples_, all.size() - begin)), micro_batches_, mix64(seed_ + step)};
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
