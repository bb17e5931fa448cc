#pragma once
/// @file
/// The loop that all kernels share: strip after strip, from every source, through registers, to every target.

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/kernels/arithmetic.hpp"
#include "dtrain/kernels/vector.hpp"
#include "dtrain/kernels/work.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// An `Arithmetic` has types Partial and Result, `bytes` of elements that one of them stands for, and
///   start(Partial&, from, 0)         the first source's elements
///   combine(Partial&, from, k)       and those of source k
///   finish(Result&, Partial&)        what is stored
///   put(to, Result const&)
/// and says whether it averages: then Beyond is a vector, in which note_beyond(Beyond&, Result const&) sets bits where
/// a result is not finite, and Careful the arithmetic for those. Twice is one for twice the bytes. Named members and no
/// array: g++ 12 leaves an array of vectors in memory.
template <class Arithmetic>
class Twice {
 public:
  static constexpr std::size_t bytes = 2 * Arithmetic::bytes;
  struct Partial {
    typename Arithmetic::Partial first, second;
  };
  struct Result {
    typename Arithmetic::Result first, second;
  };
  static constexpr bool averages = Arithmetic::averages;

  DTRAIN_ALWAYS_INLINE explicit Twice(const Work& work) noexcept : arithmetic_(work) {}
  DTRAIN_ALWAYS_INLINE void start(Partial& partial, const std::byte* from, std::size_t source) const noexcept {
    arithmetic_.start(partial.first, from, source);
    arithmetic_.start(partial.second, from + Arithmetic::bytes, source);
  }
  DTRAIN_ALWAYS_INLINE void combine(Partial& partial, const std::byte* from, std::size_t source) const noexcept {
    arithmetic_.combine(partial.first, from, source);
    arithmetic_.combine(partial.second, from + Arithmetic::bytes, source);
  }
  DTRAIN_ALWAYS_INLINE void finish(Result& result, Partial& partial) const noexcept {
    arithmetic_.finish(result.first, partial.first);
    arithmetic_.finish(result.second, partial.second);
  }
  template <class Beyond>
  DTRAIN_ALWAYS_INLINE void note_beyond(Beyond& beyond, const Result& result) const noexcept {
    arithmetic_.note_beyond(beyond, result.first);
    arithmetic_.note_beyond(beyond, result.second);
  }
  DTRAIN_ALWAYS_INLINE void put(std::byte* to, const Result& result) const noexcept {
    arithmetic_.put(to, result.first);
    arithmetic_.put(to + Arithmetic::bytes, result.second);
  }

 private:
  Arithmetic arithmetic_;
};

/// What fills, and does not overflow, 16 registers: four vectors of partial results.
template <class Arithmetic>
using Strip = std::conditional_t<(sizeof(typename Arithmetic::Partial) > sizeof(typename Arithmetic::Result)),
                                 Twice<Arithmetic>, Twice<Twice<Arithmetic>>>;

/// Finishes a strip of averages some of which are not finite, because their sums, a source or an average is not: these
/// become the sum of the sources each times the factor, which is finite where all sources are and stay below the
/// largest value by its roundings. Rare: a function of its own, for any processor.
template <class Careful>
DTRAIN_OPTIMIZED __attribute__((noinline)) void average_beyond_sum(const Work& work, std::size_t offset,
                                                                   std::byte* strip, std::size_t bytes) noexcept;

/// Reduces whole strips of an `Inner` arithmetic. Everything of one is read before anything of it is written, so that a
/// target may be a source.
template <class Inner>
DTRAIN_ALWAYS_INLINE void reduce_strips(const Work& work) noexcept {
  using Arithmetic = Strip<Inner>;
  static_assert(Work::granularity % Arithmetic::bytes == 0);
  const Arithmetic arithmetic(work);
  const std::byte* const* const sources = work.sources;
  const std::size_t source_count = work.source_count;
  std::byte* const* const targets = work.targets;
  std::byte* const* const targets_end = targets + work.target_count;
  for (std::size_t i = 0; i < work.bytes; i += Arithmetic::bytes) {
    typename Arithmetic::Partial partial;
    arithmetic.start(partial, sources[0] + i, 0);
    for (std::size_t source = 1; source != source_count; ++source) {
      arithmetic.combine(partial, sources[source] + i, source);
    }
    typename Arithmetic::Result result;
    arithmetic.finish(result, partial);
    if constexpr (Arithmetic::averages) {
      typename Inner::Beyond beyond{};
      arithmetic.note_beyond(beyond, result);
      if (__builtin_expect(any<sizeof(beyond)>(beyond), 0)) {
        std::byte strip[Arithmetic::bytes];
        arithmetic.put(strip, result);
        average_beyond_sum<typename Inner::Careful>(work, i, strip, Arithmetic::bytes);
        continue;
      }
    }
    for (std::byte* const* target = targets; target != targets_end; ++target) {
      arithmetic.put(*target + i, result);
    }
  }
}

template <class Careful>
void average_beyond_sum(const Work& work, std::size_t offset, std::byte* strip, std::size_t bytes) noexcept {
  using Lane = typename Careful::Lane;
  const std::byte* sources[Work::most_sources];
  double weights[Work::most_sources];
  for (std::size_t source = 0; source < work.source_count; ++source) {
    sources[source] = work.sources[source] + offset;
    weights[source] = work.factor;
  }
  std::byte careful[Work::granularity];
  std::byte* const target = careful;
  reduce_strips<Careful>(Work{sources, work.source_count, &target, 1, bytes, 1, 1, weights, work.key});
  for (std::size_t i = 0; i < bytes; i += sizeof(Lane)) {
    Lane bits = 0;
    std::memcpy(&bits, strip + i, sizeof(Lane));
    if ((bits & Careful::magnitude) >= Careful::infinity) {
      std::memcpy(strip + i, careful + i, sizeof(Lane));
    }
  }
  for (std::size_t k = 0; k < work.target_count; ++k) {
    std::memcpy(work.targets[k] + offset, strip, bytes);
  }
}

}  // namespace DTRAIN_NAMESPACE::kernels
