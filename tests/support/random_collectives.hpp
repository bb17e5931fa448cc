#pragma once
/// @file
/// Random collectives of any backend, each compared with a serial reference of what dtrain documents.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "dtrain/backend/operations.hpp"
#include "support/element_bytes.hpp"
#include "support/host_rank.hpp"
#include "support/scalar_reduction.hpp"

namespace support {

/// One collective, drawn alike on every rank.
struct RandomCollective {
  enum class Kind { all_reduce, reduce_scatter, all_gather, broadcast };
  Kind kind;
  dtrain::DType dtype;
  dtrain::ReduceOp op;
  std::size_t count;  ///< of a block, where there are blocks
  bool in_place;
  bool specials;  ///< with NaN and infinity
  bool large;     ///< up to the largest value: of an average
  int root;
  std::uint64_t seed;

  static RandomCollective drawn(Random& random, int ranks) {
    const auto below = [&](std::uint64_t end) { return random() / 64 % end; };
    RandomCollective made{};
    const std::uint64_t kind = below(10);
    made.kind = kind < 6   ? Kind::all_reduce
                : kind < 8 ? Kind::reduce_scatter
                : kind < 9 ? Kind::all_gather
                           : Kind::broadcast;
    made.dtype = all_dtypes[below(all_dtypes.size())];
    made.op = below(2) == 0 ? dtrain::ReduceOp::average : all_ops[below(all_ops.size())];
    // Bytes up to which messages of any kind, or inputs that a rank publishes whole, are small.
    const std::size_t threshold = (below(2) == 0 ? 8192U : 16384U) / dtrain::size_bytes(made.dtype);
    const std::size_t lengths[] = {below(20), below(2000), threshold - 3 + below(6), threshold / 8 + below(3),
                                   below(40'000)};
    made.count = lengths[below(5)];
    made.in_place = below(2) == 0;
    made.specials = below(4) == 0;
    made.large = below(2) == 0;
    made.root = static_cast<int>(below(static_cast<std::uint64_t>(ranks)));
    made.seed = random();
    return made;
  }

  bool reduces() const { return kind == Kind::all_reduce || kind == Kind::reduce_scatter; }
  std::string text() const {
    const char* const kinds[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast"};
    return std::string(kinds[static_cast<int>(kind)]) + " (" + dtrain::name(op) + ") of " + std::to_string(count) +
           " " + dtrain::name(dtype) + (in_place ? " in place" : "") + (specials ? " with specials" : "") +
           (large ? " of large values" : "");
  }
};

/// Of floats: with the exponents of the last digit of 1 and of the smallest number.
template <class Visit>
void with_format(dtrain::DType dtype, Visit visit) {
  with_element(dtype, [&]<class Element>(Element element) {
    if constexpr (FloatFormat<Element>) {
      visit(element, Element::digits, std::ilogb(Element::value(1)));
    }
  });
}

/// What one rank gives: integers of any value (averaged ones of 64 bits leave room for the sum); floats that no sum or
/// product of ten makes overflow, or for an average near the largest finite value.
inline std::vector<std::byte> random_input(const RandomCollective& what, std::size_t count, int rank) {
  Random random(what.seed + static_cast<std::uint64_t>(rank));
  std::vector<std::byte> bytes = awkward_bytes(what.dtype, count, random());
  const bool averages = what.op == dtrain::ReduceOp::average;
  const auto leave_room = [&]<class Integer>(Integer value) {
    for (std::size_t i = 0; i < bytes.size(); i += sizeof value) {
      std::memcpy(&value, bytes.data() + i, sizeof value);
      value /= 16;
      std::memcpy(bytes.data() + i, &value, sizeof value);
    }
  };
  if (averages && what.dtype == dtrain::DType::i64) leave_room(std::int64_t{});
  if (averages && what.dtype == dtrain::DType::u64) leave_room(std::uint64_t{});
  with_format(what.dtype, [&]<class Format>(Format, int digits, int) {
    using Bits = typename Format::Bits;
    using Value = typename Format::Value;
    const Bits largest = static_cast<Bits>(static_cast<std::uint64_t>(Format::nan & ~(Bits{1} << (digits - 1))) - 1);
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(Bits)) {
      const std::uint64_t drawn = random();
      const auto unit = static_cast<double>(drawn >> 12U) / 4503599627370496.0 * 2 - 1;  // -1 to 1
      Bits bits = Format::bits(static_cast<Value>(
          what.op == dtrain::ReduceOp::product ? std::copysign(0.75 + std::fabs(unit), unit) : 8 * unit));
      if (averages && what.large) {  // so far below the largest that roundings do not lead beyond it
        bits = Format::bits(static_cast<Value>(std::copysign(0.8 + unit / 16, static_cast<double>(drawn % 3) - 0.5)) *
                            Format::value(largest));
      }
      if (what.specials && what.op != dtrain::ReduceOp::product && (drawn >> 8U) % 64 == 0) {
        const Bits infinity = static_cast<Bits>(largest + 1);
        bits = (drawn & 3U) == 0 ? Format::nan : static_cast<Bits>(infinity | (drawn & 1U) << (sizeof(Bits) * 8 - 1));
      }
      std::memcpy(bytes.data() + i, &bits, sizeof(Bits));
    }
  });
  return bytes;
}

/// Whether `is` is the reduction of `ranks` (awkward bytes of minima and maxima, and integers: to the bit) within what
/// a rounding to the element at every combination, and the order of the ranks, may make of it.
inline bool is_reduction(const RandomCollective& what, const std::vector<std::vector<std::byte>>& ranks,
                         const std::vector<std::byte>& is, bool to_the_bit) {
  const std::vector<std::byte> expected = scalar_reduction(what.dtype, what.op, ranks);
  const bool orders = what.op == dtrain::ReduceOp::min || what.op == dtrain::ReduceOp::max;
  bool right = is == expected;
  if (right || to_the_bit || orders) return right;
  with_format(what.dtype, [&]<class Format>(Format, int digits, int smallest) {
    using Bits = typename Format::Bits;
    right = true;
    for (std::size_t i = 0; i < is.size(); i += sizeof(Bits)) {
      const auto at = [&](const std::vector<std::byte>& bytes) {
        Bits bits = 0;
        std::memcpy(&bits, bytes.data() + i, sizeof(Bits));
        return static_cast<long double>(Format::value(bits));
      };
      const auto count = static_cast<long double>(ranks.size());
      long double exact = what.op == dtrain::ReduceOp::product ? 1 : 0;
      long double magnitude = exact;
      for (const auto& rank : ranks) {
        const long double value = at(rank);
        const long double share = what.op == dtrain::ReduceOp::average ? value / count : value;
        exact = what.op == dtrain::ReduceOp::product ? exact * value : exact + share;
        magnitude = what.op == dtrain::ReduceOp::product ? std::fabs(exact) : magnitude + std::fabs(share);
      }
      const long double got = at(is);
      if (!std::isfinite(exact)) {
        right = right && std::memcmp(is.data() + i, expected.data() + i, sizeof(Bits)) == 0;
      } else {
        const long double tolerance =
            (count + 2) * (magnitude * std::ldexp(1.0L, -digits - 1) + std::ldexp(1.0L, smallest));
        right = right && std::fabs(got - exact) <= tolerance;
      }
    }
  });
  return right;
}

/// `operations` of one channel on `ranks`, which lie on nodes as `node_of` says; every result is checked, and those of
/// all ranks are the same bytes. @param to_the_bit floats, too, are reduced in rank order and rounded once
template <class Backend>
void run_random_collectives(int ranks, const std::vector<int>& node_of, std::uint64_t seed, int operations,
                            dtrain::Accumulate accumulate, bool to_the_bit) {
  using Bytes = std::vector<std::byte>;
  using Kind = RandomCollective::Kind;
  std::mutex mutex;
  std::vector<Bytes> first(static_cast<std::size_t>(operations));
  const auto body = [&](auto& self, int rank) {
    Random random(seed);
    for (int index = 0; index < operations; ++index) {
      const RandomCollective what = RandomCollective::drawn(random, ranks);
      INFO("seed ", seed, ", operation ", index, " on ", ranks, " ranks, rank ", rank, ", accumulate ",
           std::string(dtrain::name(accumulate)), ": ", what.text());
      const auto self_index = static_cast<std::size_t>(rank);
      const std::size_t blocks = what.kind == Kind::reduce_scatter ? static_cast<std::size_t>(ranks) : 1;
      std::vector<Bytes> given;
      for (int peer = 0; peer < ranks; ++peer)
        given.push_back(random_input(what, what.count * blocks, peer));
      const std::size_t block_bytes = what.count * dtrain::size_bytes(what.dtype);
      const auto stream = self.stream.ref();
      Bytes input = given[self_index];
      Bytes output(what.kind == Kind::all_gather ? block_bytes * static_cast<std::size_t>(ranks) : block_bytes);
      if (what.kind == Kind::all_reduce) {
        std::byte* const to = what.in_place ? input.data() : output.data();
        self.communicator.enqueue(
            dtrain::backend::AllReduce{
                {input.data(), what.count, what.dtype}, {to, what.count, what.dtype, {}}, what.op},
            stream);
        REQUIRE(self.wait());
        output = what.in_place ? input : output;
        CHECK(is_reduction(what, given, output, to_the_bit));
      } else if (what.kind == Kind::reduce_scatter) {
        std::byte* const to = what.in_place ? input.data() + self_index * block_bytes : output.data();
        self.communicator.enqueue(
            dtrain::backend::ReduceScatter{
                {input.data(), what.count * blocks, what.dtype}, {to, what.count, what.dtype, {}}, what.op},
            stream);
        REQUIRE(self.wait());
        output.assign(to, to + block_bytes);
        std::vector<Bytes> parts;
        for (const Bytes& whole : given) {
          const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(self_index * block_bytes);
          parts.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(block_bytes));
        }
        CHECK(is_reduction(what, parts, output, to_the_bit));
        continue;  // each rank has its own
      } else if (what.kind == Kind::all_gather) {
        self.communicator.enqueue(
            dtrain::backend::AllGather{{input.data(), what.count, what.dtype},
                                       {output.data(), what.count * static_cast<std::size_t>(ranks), what.dtype, {}}},
            stream);
        REQUIRE(self.wait());
        for (std::size_t peer = 0; peer < given.size(); ++peer) {
          CHECK(std::equal(given[peer].begin(), given[peer].end(),
                           output.begin() + static_cast<std::ptrdiff_t>(peer * block_bytes)));
        }
      } else {
        self.communicator.enqueue(dtrain::backend::Broadcast{{input.data(), what.count, what.dtype, {}}, what.root},
                                  stream);
        REQUIRE(self.wait());
        output = input;
        CHECK((output == given[static_cast<std::size_t>(what.root)]));
      }
      const std::lock_guard lock(mutex);
      Bytes& reference = first[static_cast<std::size_t>(index)];
      if (reference.empty()) {
        reference = output;
      }
      CHECK((reference == output));
    }
  };
  run_topology_ranks<Backend>(ranks, node_of, body, accumulate);
}

/// Rounds of a drawn number of ranks (2 to `most_ranks`), nodes (1 to `most_nodes`), and way to accumulate.
template <class Backend>
void run_random_rounds(std::uint64_t first_seed, int rounds, int most_ranks, int most_nodes, int operations,
                       bool to_the_bit = false) {
  for (int round = 0; round < rounds; ++round) {
    Random random(first_seed + static_cast<std::uint64_t>(round));
    const int ranks = 2 + static_cast<int>(random() / 64 % static_cast<std::uint64_t>(most_ranks - 1));
    const std::uint64_t nodes = 1 + random() / 64 % static_cast<std::uint64_t>(most_nodes);
    std::vector<int> node_of;
    for (int rank = 0; rank < ranks; ++rank)
      node_of.push_back(static_cast<int>(random() / 64 % nodes));
    const auto accumulate = random() / 64 % 2 == 0 ? dtrain::Accumulate::element : dtrain::Accumulate::f32;
    run_random_collectives<Backend>(ranks, node_of, random(), operations, accumulate, to_the_bit);
  }
}

/// How many rounds a test takes: `usual`, or as DTRAIN_TEST_ROUNDS says for a long run by hand.
inline int rounds_of_test(int usual) {
  const char* const text = std::getenv("DTRAIN_TEST_ROUNDS");
  return text == nullptr ? usual : std::atoi(text);
}

}  // namespace support
