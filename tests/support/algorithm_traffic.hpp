#pragma once
/// @file
/// Messages and bytes that a rank sends in each algorithm of message_passing, by formula.

#include <bit>
#include <cstddef>

#include "dtrain/backend/message_passing/algorithms/algorithm_selection.hpp"

/// Each `sent_by(rank)` is exact for every length.
namespace support {

namespace passing = dtrain::backend::message_passing;

/// Messages and bytes that one rank sends in one operation.
struct RankTraffic {
  std::size_t messages = 0;
  std::size_t headers = 0;  ///< among the messages
  std::size_t payload_bytes = 0;

  constexpr std::size_t bytes() const noexcept { return headers * sizeof(dtrain::backend::Operation) + payload_bytes; }
};

constexpr std::size_t peers_in(const passing::CollectiveShape& shape) noexcept {
  return static_cast<std::size_t>(shape.ranks) - 1;
}

/// @param shape of what a rank sends to one other
struct DirectExchangeTraffic {
  passing::CollectiveShape shape;

  constexpr RankTraffic sent_by(int /*rank*/) const noexcept {
    return {peers_in(shape), peers_in(shape), peers_in(shape) * shape.bytes()};
  }
};

struct RecursiveDoublingTraffic {
  passing::CollectiveShape shape;

  constexpr RankTraffic sent_by(int rank) const noexcept {
    const auto whole = static_cast<int>(std::bit_floor(static_cast<unsigned>(shape.ranks)));
    const auto exchanges = static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(whole)));
    if (rank >= whole) {
      return {1, 1, shape.bytes()};
    }
    const bool is_paired = rank < shape.ranks - whole;
    const std::size_t first = is_paired ? shape.partial_bytes() : shape.bytes();
    const std::size_t messages = exchanges + (is_paired ? 1 : 0);
    return {messages, messages, first + (exchanges - 1) * shape.partial_bytes() + (is_paired ? shape.bytes() : 0)};
  }
};

struct HalvingDoublingTraffic {
  passing::CollectiveShape shape;
  passing::Tuning tuning;

  constexpr RankTraffic sent_by(int rank) const noexcept {
    const passing::HalvingStages stages(shape.ranks);
    const passing::HalvingChunks chunks = passing::HalvingChunks::of(tuning, shape.partial);
    RankTraffic sent;
    if (stages.is_paired(rank)) {
      sent = {1 + chunks.messages(shape.count, true), 1, shape.bytes()};
    }
    for (std::size_t stage = 0; stages.takes_part(rank) && stage < stages.count(); ++stage) {
      const int self = stages.participant(rank);
      const int own = stages.position(self, stage);
      const std::size_t peers = static_cast<std::size_t>(stages.factor(stage)) - 1;
      const std::size_t longest = stages.longest_part(shape.count, stage);
      const bool is_partial = stage > 0 || stages.is_paired(rank);
      for (int other = 0; other < stages.factor(stage); ++other) {
        const std::size_t count = stages.part(shape.count, self, stage, other).count;
        sent.payload_bytes += other == own ? peers * count * size_bytes(shape.dtype)
                                           : count * size_bytes(is_partial ? shape.partial : shape.dtype);
      }
      sent.headers += peers;
      sent.messages += peers * (1 + chunks.messages(longest, true) + chunks.messages(longest, false));
    }
    return sent;
  }
};

struct RingTraffic {
  passing::CollectiveShape shape;
  passing::Tuning tuning;
  bool reduces;
  bool gathers;

  RankTraffic sent_by(int rank) const noexcept {
    const passing::Blocks blocks(shape.count, shape.dtype, shape.ranks, tuning, shape.partial);
    const std::size_t steps = peers_in(shape) * ((reduces ? 1 : 0) + (gathers ? 1 : 0));
    RankTraffic sent{1 + blocks.rounds() * steps * blocks.chunks_in_flight(), 1, 0};
    const auto block = [&](int distance) { return blocks.block((rank + shape.ranks - distance) % shape.ranks).count; };
    for (int step = 0; step < shape.ranks - 1; ++step) {
      const dtrain::DType reduced = step == 0 ? shape.dtype : shape.partial;
      sent.payload_bytes += reduces ? block(step + 1) * size_bytes(reduced) : 0;
      sent.payload_bytes += gathers ? block(step) * size_bytes(shape.dtype) : 0;
    }
    return sent;
  }
};

struct DirectReduceScatterTraffic {
  passing::CollectiveShape shape;
  passing::Tuning tuning;
  bool gathers;

  RankTraffic sent_by(int rank) const noexcept {
    const passing::Blocks blocks(shape.count, shape.dtype, shape.ranks, tuning);
    const std::size_t own = blocks.block(rank).bytes;
    return {peers_in(shape) * (1 + blocks.rounds() * (gathers ? 2 : 1) * blocks.chunks_in_flight()), peers_in(shape),
            shape.bytes() - own + (gathers ? peers_in(shape) * own : 0)};
  }
};

}  // namespace support
