#pragma once
/// @file
/// reduce_blocks(): loop of the reduction kernels, block after block, from every source, through registers, to every
/// target.

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "dtrain/core/config.hpp"
#include "dtrain/kernels/arithmetic/arithmetic.hpp"
#include "dtrain/kernels/kernel_arguments.hpp"
#include "dtrain/kernels/vector.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// An `Arithmetic` has types Partial and Result, `bytes` (of the elements in one Partial), and
///   start(Partial&, from, 0)         loads the first source's elements
///   combine(Partial&, from, k)       combines them with those of source k
///   finish(Result&, Partial&)        computes the value to store
///   put(to, Result const&)           stores it
/// and `averages`. If true, it also has a vector type Beyond, note_beyond(Beyond&, Result const&), which sets bits
/// where a result is not finite, and Careful, the arithmetic for such results. Twice applies an arithmetic to twice the
/// bytes. Twice has named members, because g++ 12 leaves an array of vectors in memory.
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

  DTRAIN_ALWAYS_INLINE explicit Twice(const KernelArguments& arguments) noexcept : arithmetic_(arguments) {}
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

/// The largest block that fits 16 registers: four vectors of partial results.
template <class Arithmetic>
using RegisterBlock = std::conditional_t<(sizeof(typename Arithmetic::Partial) > sizeof(typename Arithmetic::Result)),
                                         Twice<Arithmetic>, Twice<Twice<Arithmetic>>>;

/// Finishes a block of averages, some of which are not finite, because their sum, a source or the average is not. Such
/// an average becomes the sum of the sources, each multiplied by the factor first. It is finite if all sources are
/// finite and below the largest value by the sum's roundings. The case is rare, hence a separate function for any
/// processor.
template <class Careful>
DTRAIN_OPTIMIZED __attribute__((noinline)) void average_beyond_sum(const KernelArguments& arguments, std::size_t offset,
                                                                   std::byte* block, std::size_t bytes) noexcept;

/// Reduces whole blocks of an `Inner` arithmetic. All sources of a block are read before any target is written, so a
/// target may be a source.
template <class Inner>
DTRAIN_ALWAYS_INLINE void reduce_blocks(const KernelArguments& arguments) noexcept {
  using Arithmetic = RegisterBlock<Inner>;
  static_assert(KernelArguments::granularity % Arithmetic::bytes == 0);
  const Arithmetic arithmetic(arguments);
  const std::byte* const* const sources = arguments.sources;
  const std::size_t source_count = arguments.source_count;
  std::byte* const* const targets = arguments.targets;
  std::byte* const* const targets_end = targets + arguments.target_count;
  for (std::size_t i = 0; i < arguments.bytes; i += Arithmetic::bytes) {
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
        std::byte block[Arithmetic::bytes];
        arithmetic.put(block, result);
        average_beyond_sum<typename Inner::Careful>(arguments, i, block, Arithmetic::bytes);
        continue;
      }
    }
    for (std::byte* const* target = targets; target != targets_end; ++target) {
      arithmetic.put(*target + i, result);
    }
  }
}

template <class Careful>
void average_beyond_sum(const KernelArguments& arguments, std::size_t offset, std::byte* block,
                        std::size_t bytes) noexcept {
  using Lane = typename Careful::Lane;
  const std::byte* sources[KernelArguments::max_sources];
  double weights[KernelArguments::max_sources];
  for (std::size_t source = 0; source < arguments.source_count; ++source) {
    sources[source] = arguments.sources[source] + offset;
    weights[source] = arguments.factor;
  }
  std::byte careful[KernelArguments::granularity];
  std::byte* const target = careful;
  reduce_blocks<Careful>(
      KernelArguments{sources, arguments.source_count, &target, 1, bytes, 1, 1, weights, arguments.key});
  for (std::size_t i = 0; i < bytes; i += sizeof(Lane)) {
    Lane bits = 0;
    std::memcpy(&bits, block + i, sizeof(Lane));
    if ((bits & Careful::magnitude) >= Careful::infinity) {
      std::memcpy(block + i, careful + i, sizeof(Lane));
    }
  }
  for (std::size_t k = 0; k < arguments.target_count; ++k) {
    std::memcpy(arguments.targets[k] + offset, block, bytes);
  }
}

}  // namespace DTRAIN_NAMESPACE::kernels
