#pragma once
/// @file
/// Collectives with a block for each pair of ranks, for ranks of any backend: they have put(values) and get(memory).

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/operations.hpp"

namespace support {

/// Elements that rank `from` gives to rank `to`: unequal, some zero, and `scale` for the longest.
inline std::size_t pair_count(int from, int to, std::size_t scale) {
  const int drawn = (3 * from + 5 * to + from * to) % 4;
  return drawn == 0 ? 0 : scale * static_cast<std::size_t>(drawn) / 3 + static_cast<std::size_t>(to) % 2;
}

/// What rank `from` gives to rank `to` at `index`.
inline std::int32_t pair_value(int from, int to, std::size_t index) {
  return 100'000'000 * from + 10'000'000 * to + static_cast<std::int32_t>(index % 10'000'000);
}

inline std::vector<std::int32_t> pair_block(int from, int to, std::size_t count) {
  std::vector<std::int32_t> made(count);
  for (std::size_t i = 0; i < count; ++i)
    made[i] = pair_value(from, to, i);
  return made;
}

inline void append(std::vector<std::int32_t>& values, const std::vector<std::int32_t>& more) {
  values.insert(values.end(), more.begin(), more.end());
}

/// Every such collective once; `scale` is the length of the longest block.
template <class Rank>
void check_blocks(Rank& self, const std::vector<std::size_t>& scales) {
  using Values = std::vector<std::int32_t>;
  using List = std::vector<std::size_t>;
  namespace backend = dtrain::backend;
  auto& communicator = self.communicator;
  const auto stream = self.stream.ref();
  const int rank = communicator.rank();
  const int ranks = communicator.size();
  const auto n = static_cast<std::size_t>(ranks);
  const auto own = static_cast<std::size_t>(rank);
  const backend::RankPlace place{rank, ranks};
  for (const std::size_t scale : scales) {
    CAPTURE(ranks);
    CAPTURE(rank);
    CAPTURE(scale);
    List sent(n);
    List received(n);
    List gathered(n);
    Values input;
    Values expected;
    Values all;
    for (int peer = 0; peer < ranks; ++peer) {
      const auto index = static_cast<std::size_t>(peer);
      sent[index] = pair_count(rank, peer, scale);
      received[index] = pair_count(peer, rank, scale);
      gathered[index] = pair_count(peer, 1, scale);
      append(input, pair_block(rank, peer, sent[index]));
      append(expected, pair_block(peer, rank, received[index]));
      append(all, pair_block(peer, 7, gathered[index]));
    }
    {
      auto from = self.put(input);
      auto to = self.put(Values(expected.size()));
      communicator.enqueue(
          backend::ExchangeBlocks{backend::blocks_of_all_to_all(from.view(), sent, to.view(), received, place),
                                  from.view(), to.view()},
          stream);
      CHECK(self.wait());
      const bool right = self.template get<std::int32_t>(to) == expected;
      CHECK_MESSAGE(right, "all_to_all_v");
    }
    {
      Values equal;
      Values wanted;
      for (int peer = 0; peer < ranks; ++peer) {
        append(equal, pair_block(rank, peer, scale));
        append(wanted, pair_block(peer, rank, scale));
      }
      auto from = self.put(equal);
      auto to = self.put(Values(equal.size()));
      communicator.enqueue(backend::ExchangeBlocks{backend::blocks_of_all_to_all(from.view(), {}, to.view(), {}, place),
                                                   from.view(), to.view()},
                           stream);
      CHECK(self.wait());
      const bool right = self.template get<std::int32_t>(to) == wanted;
      CHECK_MESSAGE(right, "all_to_all");
    }
    {
      auto from = self.put(pair_block(rank, 7, gathered[own]));
      auto to = self.put(Values(all.size()));
      communicator.enqueue(
          backend::ExchangeBlocks{backend::blocks_of_all_gather_v(from.view(), to.view(), gathered, place), from.view(),
                                  to.view()},
          stream);
      CHECK(self.wait());
      const bool right = self.template get<std::int32_t>(to) == all;
      CHECK_MESSAGE(right, "all_gather_v");

      Values filled(all.size());
      const auto begin = static_cast<std::ptrdiff_t>(std::accumulate(gathered.begin(), gathered.begin() + rank, 0UL));
      const Values block = pair_block(rank, 7, gathered[own]);
      std::copy(block.begin(), block.end(), filled.begin() + begin);
      auto whole = self.put(filled);
      dtrain::BufferView part = whole.view();
      part.data += 4 * begin;
      part.count = gathered[own];
      communicator.enqueue(backend::ExchangeBlocks{backend::blocks_of_all_gather_v(part, whole.view(), gathered, place),
                                                   part, whole.view()},
                           stream);
      CHECK(self.wait());
      const bool in_place = self.template get<std::int32_t>(whole) == all;
      CHECK_MESSAGE(in_place, "all_gather_v in place");
    }
    for (const int root : {0, ranks - 1}) {
      CAPTURE(root);
      const bool is_root = rank == root;
      auto part = self.put(pair_block(rank, 7, gathered[own]));
      auto whole = self.put(is_root ? Values(all.size()) : Values());
      communicator.enqueue(backend::ExchangeBlocks{backend::blocks_of_gather(part.view(), whole.view(),
                                                                             is_root ? gathered : List(), root, place),
                                                   part.view(), whole.view()},
                           stream);
      CHECK(self.wait());
      bool right = self.template get<std::int32_t>(whole) == (is_root ? all : Values());
      CHECK_MESSAGE(right, "gather_v");

      auto back = self.put(Values(gathered[own]));
      communicator.enqueue(backend::ExchangeBlocks{backend::blocks_of_scatter(whole.view(), is_root ? gathered : List(),
                                                                              back.view(), root, place),
                                                   whole.view(), back.view()},
                           stream);
      CHECK(self.wait());
      right = self.template get<std::int32_t>(back) == pair_block(rank, 7, gathered[own]);
      CHECK_MESSAGE(right, "scatter_v");

      auto same = self.put(pair_block(rank, 3, scale));
      auto table = self.put(is_root ? Values(n * scale) : Values());
      auto returned = self.put(Values(scale));
      communicator.enqueue(
          backend::ExchangeBlocks{backend::blocks_of_gather(same.view(), table.view(), {}, root, place), same.view(),
                                  table.view()},
          stream);
      communicator.enqueue(
          backend::ExchangeBlocks{backend::blocks_of_scatter(table.view(), {}, returned.view(), root, place),
                                  table.view(), returned.view()},
          stream);
      CHECK(self.wait());
      right = self.template get<std::int32_t>(returned) == pair_block(rank, 3, scale);
      CHECK_MESSAGE(right, "gather and scatter");

      auto given = self.put(pair_block(rank, 0, scale));
      auto sum = self.put(is_root ? Values(scale) : Values());
      communicator.enqueue(backend::ReduceBlocks{backend::blocks_of_reduce(given.view(), sum.view(), root, place),
                                                 given.view(), sum.view(), dtrain::ReduceOp::sum},
                           stream);
      CHECK(self.wait());
      Values total(is_root ? scale : 0);
      for (std::size_t i = 0; i < total.size(); ++i) {
        for (int peer = 0; peer < ranks; ++peer) {
          total[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(total[i]) +
                                               static_cast<std::uint32_t>(pair_value(peer, 0, i)));
        }
      }
      right = self.template get<std::int32_t>(sum) == total;
      CHECK_MESSAGE(right, "reduce");
    }
    {
      const std::size_t whole_count = all.size();
      const std::size_t begin = std::accumulate(gathered.begin(), gathered.begin() + rank, std::size_t{0});
      Values reduced(gathered[own]);
      for (std::size_t i = 0; i < reduced.size(); ++i) {
        for (int peer = 0; peer < ranks; ++peer)
          reduced[i] = std::max(reduced[i], pair_value(peer, 0, begin + i) % 7919);
      }
      Values values = pair_block(rank, 0, whole_count);
      for (std::int32_t& value : values)
        value %= 7919;
      auto from = self.put(values);
      auto to = self.put(Values(gathered[own]));
      communicator.enqueue(
          backend::ReduceBlocks{backend::blocks_of_reduce_scatter_v(from.view(), to.view(), gathered, place),
                                from.view(), to.view(), dtrain::ReduceOp::max},
          stream);
      CHECK(self.wait());
      bool right = self.template get<std::int32_t>(to) == reduced;
      CHECK_MESSAGE(right, "reduce_scatter_v");

      dtrain::BufferView part = from.view();
      part.data += 4 * begin;
      part.count = gathered[own];
      communicator.enqueue(
          backend::ReduceBlocks{backend::blocks_of_reduce_scatter_v(from.view(), part, gathered, place), from.view(),
                                part, dtrain::ReduceOp::max},
          stream);
      CHECK(self.wait());
      const auto after = self.template get<std::int32_t>(from);
      right = std::equal(reduced.begin(), reduced.end(), after.begin() + static_cast<std::ptrdiff_t>(begin));
      CHECK_MESSAGE(right, "reduce_scatter_v in place");
    }
  }
}

}  // namespace support
