#pragma once
/// @file
/// What every topology's all_reduce is held to.

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "dtrain/backend/shared_memory.hpp"
#include "support/element_bytes.hpp"
#include "support/scalar_reduction.hpp"
#include "support/topology_rank.hpp"

namespace topology_test {

using Bytes = std::vector<std::byte>;

/// Ones and twos: their sums and products are exact in every type, so that their order does not matter.
inline std::vector<Bytes> exact_inputs(dtrain::DType dtype, int ranks, std::size_t count) {
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    Bytes& bytes = inputs.emplace_back(count * dtrain::size_bytes(dtype));
    support::Random random(count + static_cast<std::uint64_t>(rank));
    support::with_element(dtype, [&]<class Element>(Element) {
      for (std::size_t i = 0; i < count; ++i) {
        const bool two = random() >> 40U & 1U;
        std::uint64_t bits = two ? 2 : 1;
        switch (dtype) {
          case dtrain::DType::f64: bits = two ? 0x4000000000000000 : 0x3ff0000000000000; break;
          case dtrain::DType::f32: bits = two ? 0x40000000 : 0x3f800000; break;
          case dtrain::DType::f16: bits = two ? 0x4000 : 0x3c00; break;
          case dtrain::DType::bf16: bits = two ? 0x4000 : 0x3f80; break;
          default: break;
        }
        std::memcpy(bytes.data() + i * sizeof(typename Element::Bits), &bits, sizeof(typename Element::Bits));
      }
    });
  }
  return inputs;
}

/// Every type and operation, in place and not, for one number of elements.
template <class Backend>
void check_exact(int ranks, const std::vector<int>& node_of, const std::vector<std::size_t>& counts) {
  CAPTURE(ranks);
  support::run_topology_ranks<Backend>(ranks, node_of, [&](auto& self, int rank) {
    for (const std::size_t count : counts) {
      for (const dtrain::DType dtype : support::all_dtypes) {
        const std::vector<Bytes> inputs = exact_inputs(dtype, ranks, count);
        const Bytes& own = inputs[static_cast<std::size_t>(rank)];
        for (const dtrain::ReduceOp op : support::all_ops) {
          const Bytes expected = support::scalar_reduction(dtype, op, inputs);
          Bytes in_place = own;
          Bytes apart(own.size(), std::byte{0xee});
          const bool served =
              self.all_reduce({in_place.data(), count, dtype}, {in_place.data(), count, dtype, {}}, op) &&
              self.all_reduce({own.data(), count, dtype}, {apart.data(), count, dtype, {}}, op);
          const bool right = served && in_place == expected && apart == expected;
          CHECK_MESSAGE(right, dtrain::name(op) << " of " << count << " " << dtrain::name(dtype) << ", rank " << rank
                                                << " of " << ranks);
        }
      }
    }
  });
}

inline std::vector<float> uneven_floats(std::size_t count, int rank) {
  std::vector<float> values(count);
  support::Random random(17 + static_cast<std::uint64_t>(rank));
  for (float& value : values) {
    value = static_cast<float>(random() % 20011) / 1000.0F - 10.0F;
  }
  return values;
}

/// The average of uneven values: the same bits on every rank and in both of two runs, and near the exact result.
/// Several pieces long.
template <class Backend>
void check_bits(int ranks, const std::vector<int>& node_of, std::size_t count) {
  CAPTURE(ranks);
  std::vector<std::vector<float>> results;
  for (int run = 0; run < 2; ++run) {
    std::vector<std::vector<float>> ends(static_cast<std::size_t>(ranks));
    support::run_topology_ranks<Backend>(ranks, node_of, [&](auto& self, int rank) {
      std::vector<float>& values = ends[static_cast<std::size_t>(rank)];
      values = uneven_floats(count, rank);
      const auto view = dtrain::buffer_view(std::span(values));
      CHECK(self.all_reduce(view, view, dtrain::ReduceOp::average));
    });
    for (const std::vector<float>& end : ends) {
      CHECK(std::memcmp(end.data(), ends[0].data(), count * sizeof(float)) == 0);
    }
    results.push_back(ends[0]);
  }
  CHECK(std::memcmp(results[0].data(), results[1].data(), count * sizeof(float)) == 0);
  std::vector<double> sums(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> values = uneven_floats(count, rank);
    for (std::size_t i = 0; i < count; ++i)
      sums[i] += static_cast<double>(values[i]);
  }
  double worst = 0;
  for (std::size_t i = 0; i < count; ++i) {
    worst = std::fmax(worst, std::fabs(sums[i] / ranks - static_cast<double>(results[0][i])));
  }
  CHECK(worst < 1e-5);
}

}  // namespace topology_test
