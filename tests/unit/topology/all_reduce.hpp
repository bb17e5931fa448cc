#pragma once
/// @file
/// What every topology's all_reduce is held to.

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/core/types/small_floats.hpp"
#include "support/element_bytes.hpp"
#include "support/host_rank.hpp"
#include "support/large_values.hpp"
#include "support/scalar_reduction.hpp"

namespace topology_test {

using Bytes = std::vector<std::byte>;

inline std::uint64_t bits_of(dtrain::DType dtype, int value) {
  const auto number = static_cast<float>(value);
  switch (dtype) {
    case dtrain::DType::f64: return std::bit_cast<std::uint64_t>(static_cast<double>(value));
    case dtrain::DType::f32: return std::bit_cast<std::uint32_t>(number);
    case dtrain::DType::f16: return dtrain::float16(number).bits;
    case dtrain::DType::bf16: return dtrain::bfloat16(number).bits;
    default: return static_cast<std::uint64_t>(value);
  }
}

/// One and two units: sums and products of ones and twos are exact in every type, so that their order does not matter.
inline std::vector<Bytes> exact_inputs(dtrain::DType dtype, int ranks, std::size_t count, int unit = 1) {
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    Bytes& bytes = inputs.emplace_back(count * dtrain::size_bytes(dtype));
    support::Random random(count + static_cast<std::uint64_t>(rank));
    for (std::size_t i = 0; i < bytes.size(); i += dtrain::size_bytes(dtype)) {
      const std::uint64_t bits = bits_of(dtype, (random() >> 40U & 1U) != 0 ? 2 * unit : unit);
      std::memcpy(bytes.data() + i, &bits, dtrain::size_bytes(dtype));  // little endian
    }
  }
  return inputs;
}

/// A number that the number of ranks of every node divides: averages of its multiples by the number of ranks, of all
/// ranks at once or of nodes first, are whole numbers on the way, too.
inline int unit_of_averages(const std::vector<int>& node_of) {
  int unit = 1;
  for (const int node : node_of)
    unit = std::lcm(unit, static_cast<int>(std::count(node_of.begin(), node_of.end(), node)));
  return unit;
}

/// Every type and operation, in place and not, for one number of elements.
template <class Backend>
void check_exact(int ranks, const std::vector<int>& node_of, const std::vector<std::size_t>& counts,
                 dtrain::Accumulate accumulate = dtrain::Accumulate::element) {
  CAPTURE(ranks);
  const auto body = [&](auto& self, int rank) {
    for (const std::size_t count : counts) {
      for (const dtrain::DType dtype : support::all_dtypes) {
        for (const dtrain::ReduceOp op : support::all_ops) {
          const bool averages = op == dtrain::ReduceOp::average;
          const int unit = averages ? unit_of_averages(node_of) : 1;
          const std::vector<Bytes> inputs = exact_inputs(dtype, ranks, count, averages ? unit * ranks : unit);
          const Bytes& own = inputs[static_cast<std::size_t>(rank)];
          const Bytes expected = support::scalar_reduction(dtype, averages ? dtrain::ReduceOp::sum : op,
                                                           exact_inputs(dtype, ranks, count, unit));
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
  };
  support::run_topology_ranks<Backend>(ranks, node_of, body, accumulate);
}

/// The average of every type at half of its largest value, short and long.
template <class Backend>
void check_large(int ranks, const std::vector<int>& node_of = {}) {
  CAPTURE(ranks);
  for (const dtrain::Accumulate accumulate : {dtrain::Accumulate::element, dtrain::Accumulate::f32}) {
    const auto body = [&](auto& self, int rank) {
      for (const std::size_t count : {std::size_t{5}, std::size_t{300'000}}) {
        for (const dtrain::DType dtype : support::all_dtypes) {
          Bytes values = support::large_values(dtype, count);
          const dtrain::BufferView view{values.data(), count, dtype, {}};
          const bool served = self.all_reduce(view, view, dtrain::ReduceOp::average);
          CHECK_MESSAGE((served && support::is_large_value(dtype, values, 2 * ranks)),
                        count << " " << dtrain::name(dtype) << ", rank " << rank << " of " << ranks);
        }
      }
    };
    support::run_topology_ranks<Backend>(ranks, node_of, body, accumulate);
  }
}

inline std::vector<float> uneven_floats(std::size_t count, int rank) {
  std::vector<float> values(count);
  support::Random random(17 + static_cast<std::uint64_t>(rank));
  for (float& value : values)
    value = static_cast<float>(random() % 20011) / 1000.0F - 10.0F;
  return values;
}

/// The average of uneven values: the same bits on every rank and in both of two runs, and near the exact result.
/// Several pieces long. @param allowed error of an average of values up to 10
template <class Backend>
void check_bits(int ranks, const std::vector<int>& node_of, std::size_t count, double allowed = 1e-5) {
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
    for (const std::vector<float>& end : ends)
      CHECK(std::memcmp(end.data(), ends[0].data(), count * sizeof(float)) == 0);
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
  for (std::size_t i = 0; i < count; ++i)
    worst = std::fmax(worst, std::fabs(sums[i] / ranks - static_cast<double>(results[0][i])));
  CHECK(worst < allowed);
}

}  // namespace topology_test
