#pragma once
// What a reduction that goes from rank to rank is to give, bit by bit: element after element, from dtrain's
// documentation alone.

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "support/scalar_reduction.hpp"

namespace support {

/// `ranks` in the order in which the chain takes them in: the first two contributions are combined, then the result
/// with the third.
template <class Format>
typename Format::Bits chain_of_floats(dtrain::ReduceOp op, const std::vector<typename Format::Bits>& ranks,
                                      dtrain::Accumulate accumulate) {
  using Value = typename Format::Value;
  if (op == dtrain::ReduceOp::min || op == dtrain::ReduceOp::max) {
    return reduce_float<Format>(op, ranks, ranks.size());  // in any order
  }
  const bool average = op == dtrain::ReduceOp::average;
  const Value weight = average ? static_cast<Value>(1.0 / static_cast<double>(ranks.size())) : Value{1};
  const bool rounds = accumulate == dtrain::Accumulate::element;
  Value partial = Format::value(ranks[0]) * weight;
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const Value own = Format::value(ranks[rank]) * weight;
    partial = op == dtrain::ReduceOp::product ? partial * own : partial + own;
    partial = rounds && partial == partial ? Format::value(Format::bits(partial)) : partial;
  }
  return partial == partial ? Format::bits(partial) : Format::nan;
}

template <class T>
T chain_of_integers(dtrain::ReduceOp op, const std::vector<T>& ranks) {
  __extension__ typedef __int128 Wide;
  if constexpr (sizeof(T) == sizeof(std::uint64_t)) {
    if (op == dtrain::ReduceOp::average) {
      std::uint64_t partial = 0;
      for (std::size_t rank = 0; rank + 1 < ranks.size(); ++rank)
        partial += static_cast<std::uint64_t>(ranks[rank]);
      return static_cast<T>((Wide{static_cast<T>(partial)} + ranks.back()) / static_cast<Wide>(ranks.size()));
    }
  }
  return reduce_integer(op, ranks, ranks.size());
}

inline std::vector<std::byte> scalar_chain(dtrain::DType dtype, dtrain::ReduceOp op,
                                           const std::vector<std::vector<std::byte>>& ranks,
                                           dtrain::Accumulate accumulate = dtrain::Accumulate::element) {
  return reduce_elements(dtype, ranks, [&]<class Element, class Bits>(Element, const std::vector<Bits>& values) {
    if constexpr (FloatFormat<Element>) {
      return chain_of_floats<Element>(op, values, accumulate);
    } else {
      return chain_of_integers(op, values);
    }
  });
}

}  // namespace support
