#pragma once
/// @file
/// The loop that all kernels share: strip after strip, from every source, through registers, to every target.

#include <cstddef>
#include <type_traits>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/kernels/vector.hpp"
#include "dtrain/kernels/work.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// An `Arithmetic` has types Partial and Result, `bytes` of elements that one of them stands for, and
///   start(Partial&, from)            the first source's elements
///   combine(Partial&, from)          and another's
///   finish(Result&, Partial&)        what is stored
///   put(to, Result const&)
/// Twice is one for twice the bytes. Named members and no array: g++ 12 leaves an array of vectors in memory.
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

  DTRAIN_ALWAYS_INLINE explicit Twice(const Work& work) noexcept : arithmetic_(work) {}
  DTRAIN_ALWAYS_INLINE void start(Partial& partial, const std::byte* from) const noexcept {
    arithmetic_.start(partial.first, from);
    arithmetic_.start(partial.second, from + Arithmetic::bytes);
  }
  DTRAIN_ALWAYS_INLINE void combine(Partial& partial, const std::byte* from) const noexcept {
    arithmetic_.combine(partial.first, from);
    arithmetic_.combine(partial.second, from + Arithmetic::bytes);
  }
  DTRAIN_ALWAYS_INLINE void finish(Result& result, Partial& partial) const noexcept {
    arithmetic_.finish(result.first, partial.first);
    arithmetic_.finish(result.second, partial.second);
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

/// Reduces whole strips. Everything of one is read before anything of it is written, so that a target may be a source.
template <class Arithmetic>
DTRAIN_ALWAYS_INLINE void reduce_strips(const Work& work) noexcept {
  static_assert(Work::granularity % Arithmetic::bytes == 0);
  const Arithmetic arithmetic(work);
  const std::byte* const* const sources = work.sources;
  const std::byte* const* const sources_end = sources + work.source_count;
  std::byte* const* const targets = work.targets;
  std::byte* const* const targets_end = targets + work.target_count;
  for (std::size_t i = 0; i < work.bytes; i += Arithmetic::bytes) {
    typename Arithmetic::Partial partial;
    arithmetic.start(partial, *sources + i);
    for (const std::byte* const* source = sources + 1; source != sources_end; ++source) {
      arithmetic.combine(partial, *source + i);
    }
    typename Arithmetic::Result result;
    arithmetic.finish(result, partial);
    for (std::byte* const* target = targets; target != targets_end; ++target) {
      arithmetic.put(*target + i, result);
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::kernels
