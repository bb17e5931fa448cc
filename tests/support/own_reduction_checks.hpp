#pragma once
/// @file
/// Checks of a group's reductions by a function of the program's own, against a fold of all ranks' values.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "dtrain/core/types/reduce_op.hpp"

namespace support {

/// 24 bytes, of which some are padding.
struct Padded {
  std::uint64_t wide = 0;
  std::uint8_t narrow = 0;
  double real = 0;
  friend bool operator==(const Padded&, const Padded&) = default;
};

/// Neither associative nor commutative.
inline std::uint64_t mix(std::uint64_t earlier, std::uint64_t later) {
  return earlier * 31 + (later ^ (earlier >> 7U));
}
inline Padded mix_padded(const Padded& earlier, const Padded& later) {
  return {mix(earlier.wide, later.wide), static_cast<std::uint8_t>(earlier.narrow * 3 + later.narrow),
          earlier.real / 2 - later.real};
}

inline std::uint64_t number_of(std::size_t rank, std::size_t i) {
  return (rank + 1) * 0x9e3779b97f4a7c15 + i * 0xbf58476d1ce4e5b9;
}
inline Padded padded_of(std::size_t rank, std::size_t i) {
  return {number_of(rank, i), static_cast<std::uint8_t>(number_of(rank, i) >> 40U), static_cast<double>(rank * 7 + i)};
}

/// What `make(rank, i)` of all ranks folds to, from the left.
template <class Make, class F>
auto folded(std::size_t ranks, std::size_t i, Make make, F f) {
  auto result = make(0, i);
  for (std::size_t rank = 1; rank < ranks; ++rank)
    result = f(result, make(rank, i));
  return result;
}

template <class T, class Make>
std::vector<T> values_of(std::size_t rank, std::size_t count, Make make) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = make(rank, i);
  return values;
}

/// all_reduce, reduce and reduce_scatter_v of `count` elements by `f`, against the fold.
template <class T, class Group, class Make, class F>
void check_own_reduction(const Group& group, std::size_t count, Make make, F f) {
  CAPTURE(count);
  const auto ranks = static_cast<std::size_t>(group.world_size());
  const auto me = static_cast<std::size_t>(group.rank());
  std::vector<T> expected(count);
  for (std::size_t i = 0; i < count; ++i)
    expected[i] = folded(ranks, i, make, f);
  const std::vector<T> mine = values_of<T>(me, count, make);

  std::vector<T> values = mine;
  group.all_reduce(values, f);
  CHECK(values == expected);

  const auto by_spans = [&](std::span<T> into, std::span<const T> from) {
    for (std::size_t i = 0; i < into.size(); ++i)
      into[i] = f(into[i], from[i]);
  };
  values = mine;
  group.all_reduce(values, by_spans);
  CHECK(values == expected);

  const int root = group.world_size() - 1;
  values = mine;
  group.reduce(values, root, f);
  CHECK(values == (group.rank() == root ? expected : mine));

  // Blocks of all lengths: rank 0 has none where there are several, the last one what is left.
  std::vector<int> counts(ranks, static_cast<int>(count / (ranks + 1)));
  counts.front() = 0;
  counts.back() = static_cast<int>(count) - std::accumulate(counts.begin(), counts.end() - 1, 0);
  const auto begin =
      static_cast<std::size_t>(std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(me), 0));
  const auto length = static_cast<std::size_t>(counts[me]);
  std::vector<T> part(length);
  group.reduce_scatter_v(mine, part, counts, f);
  CHECK(std::equal(part.begin(), part.end(), expected.begin() + static_cast<std::ptrdiff_t>(begin)));
  values = mine;
  group.reduce_scatter_v(values, std::span(values).subspan(begin, length), counts, by_spans);
  CHECK(std::equal(part.begin(), part.end(), values.begin() + static_cast<std::ptrdiff_t>(begin)));
}

/// A reducer as libraries have it that know the size of their elements at run time, on bytes: the blocks it is given
/// are whole, and the sum has the bits of the built-in one.
template <class Group>
void check_reducer_of_bytes(const Group& group, std::size_t elements) {
  const auto ranks = static_cast<std::size_t>(group.world_size());
  const auto me = static_cast<std::size_t>(group.rank());
  const auto make = [](std::size_t rank, std::size_t i) { return 1.0 / static_cast<double>(rank * 131 + i + 1); };
  const std::vector<double> mine = values_of<double>(me, elements * ranks, make);
  std::vector<double> expected(elements);
  group.reduce_scatter_v(mine, expected, std::vector<std::size_t>(ranks, elements));
  std::vector<double> sums(elements);
  const std::vector<int> lengths(ranks, static_cast<int>(elements * sizeof(double)));
  std::size_t calls = 0;
  const auto add = [&](std::span<char> into, std::span<const char> from) {
    ++calls;
    CHECK(into.size() == elements * sizeof(double));
    for (std::size_t i = 0; i < into.size(); i += sizeof(double)) {
      double sum = 0, other = 0;
      std::memcpy(&sum, &into[i], sizeof(double));
      std::memcpy(&other, &from[i], sizeof(double));
      sum += other;
      std::memcpy(&into[i], &sum, sizeof(double));
    }
  };
  group.reduce_scatter_v(std::span(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(double)),
                         std::span(reinterpret_cast<char*>(sums.data()), sums.size() * sizeof(double)), lengths, add);
  CHECK(sums == expected);
  CHECK(calls == ranks - 1);
}

/// At one element, at and around what is gathered in place of owned (32 KiB over all ranks), and above one round.
template <class Group>
void check_own_reductions(const Group& group, bool above_one_round) {
  const auto ranks = static_cast<std::size_t>(group.world_size());
  const std::size_t edge = (std::size_t{32} << 10) / ranks / sizeof(std::uint64_t);
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, ranks - 1, edge - 1, edge, edge + 1})
    check_own_reduction<std::uint64_t>(group, count, number_of, mix);
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}})
    check_own_reduction<Padded>(group, count, padded_of, mix_padded);
  if (above_one_round) {
    check_own_reduction<std::uint64_t>(group, (std::size_t{5} << 20) / sizeof(std::uint64_t) + 3, number_of, mix);
  }
  check_reducer_of_bytes(group, 700);
  const Padded best = group.all_reduce(padded_of(static_cast<std::size_t>(group.rank()), 5), mix_padded);
  CHECK(best == folded(ranks, 5, padded_of, mix_padded));
}

}  // namespace support
