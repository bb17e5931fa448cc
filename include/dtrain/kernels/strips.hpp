#pragma once
/// @file
/// The loop that all kernels share: strip after strip, from every source, through registers, to every target.

#include <cstddef>
#include <cstring>

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
/// Everything of a strip is read before anything is written, so that a target may be a source.
template <class Arithmetic>
DTRAIN_ALWAYS_INLINE void reduce_strips(const Work& work) noexcept {
  constexpr std::size_t bytes = Arithmetic::bytes;
  const Arithmetic arithmetic(work);
  const std::byte* const* const sources = work.sources;
  const std::byte* const* const sources_end = sources + work.source_count;
  std::byte* const* const targets = work.targets;
  std::byte* const* const targets_end = targets + work.target_count;
  std::size_t i = 0;
  for (; i + 4 * bytes <= work.bytes; i += 4 * bytes) {
    typename Arithmetic::Partial first, second, third, fourth;
    const std::byte* const start = *sources + i;
    arithmetic.start(first, start);
    arithmetic.start(second, start + bytes);
    arithmetic.start(third, start + 2 * bytes);
    arithmetic.start(fourth, start + 3 * bytes);
    for (const std::byte* const* source = sources + 1; source != sources_end; ++source) {
      const std::byte* const from = *source + i;
      arithmetic.combine(first, from);
      arithmetic.combine(second, from + bytes);
      arithmetic.combine(third, from + 2 * bytes);
      arithmetic.combine(fourth, from + 3 * bytes);
    }
    typename Arithmetic::Result results[4];
    arithmetic.finish(results[0], first);
    arithmetic.finish(results[1], second);
    arithmetic.finish(results[2], third);
    arithmetic.finish(results[3], fourth);
    for (std::byte* const* target = targets; target != targets_end; ++target) {
      std::byte* const to = *target + i;
      arithmetic.put(to, results[0]);
      arithmetic.put(to + bytes, results[1]);
      arithmetic.put(to + 2 * bytes, results[2]);
      arithmetic.put(to + 3 * bytes, results[3]);
    }
  }
  for (; i < work.bytes; i += bytes) {  // the last is padded: the same instructions on every element
    const std::size_t part = work.bytes - i < bytes ? work.bytes - i : bytes;
    std::byte padded[bytes] = {};
    const auto whole = [&](const std::byte* from) noexcept -> const std::byte* {
      return part == bytes ? from : static_cast<const std::byte*>(std::memcpy(padded, from, part));
    };
    typename Arithmetic::Partial partial;
    arithmetic.start(partial, whole(*sources + i));
    for (const std::byte* const* source = sources + 1; source != sources_end; ++source) {
      arithmetic.combine(partial, whole(*source + i));
    }
    typename Arithmetic::Result result;
    arithmetic.finish(result, partial);
    arithmetic.put(padded, result);
    for (std::byte* const* target = targets; target != targets_end; ++target) {
      std::memcpy(*target + i, padded, part);
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::kernels
