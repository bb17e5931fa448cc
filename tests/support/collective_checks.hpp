#pragma once
/// @file
/// Every collective of a channel, for ranks of any backend: they have put(values), space(count) and get(memory).

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "dtrain/backend/operations.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/kernels/reduction.hpp"
#include "support/element_bytes.hpp"
#include "support/exact_values.hpp"

namespace support {

/// What the baseline kernel makes of exact_values of all ranks, in one piece.
inline std::vector<std::byte> exact_reduction(dtrain::DType dtype, dtrain::ReduceOp op, std::size_t count, int ranks) {
  std::vector<std::vector<std::byte>> inputs;
  std::vector<const std::byte*> sources;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(exact_values(dtype, count, rank));
    sources.push_back(inputs.back().data());
  }
  std::vector<std::byte> result(inputs[0].size());
  std::byte* const target = result.data();
  dtrain::kernels::Reduction::of(dtype, op, dtrain::kernels::Isa::baseline)(sources, std::span(&target, 1), count);
  return result;
}

inline std::vector<std::int32_t> numbers(std::size_t count, int from) {
  std::vector<std::int32_t> made(count);
  std::iota(made.begin(), made.end(), from);
  return made;
}

/// Every type and operation for which `is_reduced(dtype, op)`.
template <class Rank, class IsReduced>
void check_reductions(Rank& self, const std::vector<std::size_t>& counts, IsReduced is_reduced) {
  const auto& communicator = self.communicator;
  for (const std::size_t count : counts) {
    for (const dtrain::DType dtype : all_dtypes) {
      for (const dtrain::ReduceOp op : all_ops) {
        if (!is_reduced(dtype, op)) continue;
        auto memory = self.put(exact_values(dtype, count, communicator.rank()), dtype);
        const dtrain::BufferView view = memory.view();
        self.communicator.enqueue(dtrain::backend::AllReduce{view, view, op}, self.stream.ref());
        const bool right = self.wait() && self.template get<std::byte>(memory) ==
                                              exact_reduction(dtype, op, count, communicator.size());
        CHECK_MESSAGE(right, dtrain::name(op) << " of " << count << " " << dtrain::name(dtype));
      }
    }
  }
}

/// Every other collective, and messages.
template <class Rank>
void check_moves(Rank& self, const std::vector<std::size_t>& counts) {
  using Number = std::int32_t;
  auto& communicator = self.communicator;
  const auto stream = self.stream.ref();
  const int rank = communicator.rank();
  const int ranks = communicator.size();
  const int left = (rank + ranks - 1) % ranks;
  for (const std::size_t count : counts) {
    const std::size_t all = count * static_cast<std::size_t>(ranks);
    auto own = self.put(numbers(count, rank));
    auto whole = self.put(std::vector<Number>(all));
    auto part = self.put(std::vector<Number>(count));
    auto from_root = self.put(numbers(count, rank == ranks - 1 ? 5 : 0));
    auto from_left = self.put(std::vector<Number>(count));
    communicator.enqueue(dtrain::backend::AllGather{own.view(), whole.view()}, stream);
    communicator.enqueue(dtrain::backend::ReduceScatter{whole.view(), part.view(), dtrain::ReduceOp::sum}, stream);
    communicator.enqueue(dtrain::backend::Broadcast{from_root.view(), ranks - 1}, stream);
    communicator.enqueue(dtrain::backend::Barrier{}, stream);
    dtrain::BufferView nothing = from_root.view();
    nothing.count = 0;
    communicator.enqueue(dtrain::backend::Broadcast{nothing, 0}, stream);
    communicator.enqueue(dtrain::backend::SendRecv{own.view(), (rank + 1) % ranks, from_left.view(), left}, stream);
    if (ranks > 1 && rank == 0) {
      communicator.enqueue(dtrain::backend::Send{own.view(), 1}, stream);
    } else if (rank == 1) {
      communicator.enqueue(dtrain::backend::Recv{own.view(), 0}, stream);
    }
    CHECK(self.wait());
    std::vector<Number> gathered;
    for (int other = 0; other < ranks; ++other) {
      const std::vector<Number> block = numbers(count, other);
      gathered.insert(gathered.end(), block.begin(), block.end());
    }
    std::vector<Number> summed = numbers(count, rank);
    for (Number& value : summed)
      value *= ranks;
    CHECK(self.template get<Number>(whole) == gathered);
    CHECK(self.template get<Number>(part) == summed);
    CHECK(self.template get<Number>(from_root) == numbers(count, 5));
    CHECK(self.template get<Number>(from_left) == numbers(count, left));
    CHECK(self.template get<Number>(own) == numbers(count, rank == 1 ? 0 : rank));
  }
}

}  // namespace support
