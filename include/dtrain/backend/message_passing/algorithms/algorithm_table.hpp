#pragma once
/// @file
/// AllReduceAlgorithm, and AlgorithmTable: the cheapest algorithm for each length by alpha and beta, from cost
/// functions.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "dtrain/backend/algorithm_choice.hpp"
#include "dtrain/backend/message_passing/algorithms/blocks.hpp"
#include "dtrain/backend/message_passing/algorithms/halving_stages.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/version.hpp"

/// Each algorithm has `sent_by(rank)`, which is exact for every length, and, if it is a choice among several, `path()`:
/// the messages and bytes on its longest chain. Below, n ranks reduce S bytes. A rank sends one message at a time
/// (single-port model). Chunks that are in flight together count as one message; headers with their first chunk, and
/// combining not at all. Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication
/// operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005), 4; the files of the algorithms name others.
namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Messages and bytes that one rank sends in one operation.
struct RankTraffic {
  std::size_t messages = 0;
  std::size_t headers = 0;  ///< among the messages
  std::size_t payload_bytes = 0;

  constexpr std::size_t bytes() const noexcept { return headers * sizeof(Operation) + payload_bytes; }
};

struct CriticalPath {
  double messages = 0;
  double bytes = 0;

  constexpr double seconds(const LinkCost& link) const noexcept { return link.seconds(messages, bytes); }
};

/// A buffer and the ranks that reduce or exchange it.
struct CollectiveShape {
  int ranks;
  std::size_t count;  ///< elements of the whole buffer
  DType dtype;
  DType partial;  ///< type of partial results; `dtype` if nothing is reduced

  constexpr std::size_t bytes() const noexcept { return count * size_bytes(dtype); }
  constexpr std::size_t partial_bytes() const noexcept { return count * size_bytes(partial); }
  constexpr std::size_t peers() const noexcept { return static_cast<std::size_t>(ranks) - 1; }
};

/// direct_exchange.hpp: alpha + (n - 1) S beta, because its messages are independent and in flight together.
struct DirectExchangeCost {
  CollectiveShape shape;  ///< of what a rank sends to one other

  constexpr RankTraffic sent_by(int /*rank*/) const noexcept {
    return {shape.peers(), shape.peers(), shape.peers() * shape.bytes()};
  }
  constexpr CriticalPath path() const noexcept {
    const auto peers = static_cast<double>(shape.peers());
    return {1, peers * static_cast<double>(shape.bytes())};
  }
};

/// recursive_doubling.hpp: log2(n) (alpha + S beta); two messages more if n is no power of two.
struct RecursiveDoublingCost {
  CollectiveShape shape;

  constexpr RankTraffic sent_by(int rank) const noexcept {
    if (rank >= whole()) {
      return {1, 1, shape.bytes()};
    }
    const bool is_paired = rank < shape.ranks - whole();
    const std::size_t first = is_paired ? shape.partial_bytes() : shape.bytes();
    const std::size_t messages = exchanges() + (is_paired ? 1 : 0);
    return {messages, messages, first + (exchanges() - 1) * shape.partial_bytes() + (is_paired ? shape.bytes() : 0)};
  }
  constexpr CriticalPath path() const noexcept {
    const bool has_pairs = shape.ranks > whole();
    const auto all = static_cast<double>(shape.bytes());
    const auto partial = static_cast<double>(shape.partial_bytes());
    const auto steps = static_cast<double>(exchanges());
    return has_pairs ? CriticalPath{steps + 2, 2 * all + steps * partial}
                     : CriticalPath{steps, all + (steps - 1) * partial};
  }

 private:
  constexpr int whole() const noexcept { return static_cast<int>(std::bit_floor(static_cast<unsigned>(shape.ranks))); }
  constexpr std::size_t exchanges() const noexcept {
    return static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(whole())));
  }
};

/// halving_doubling.hpp: 2 log2(n) alpha + 2 (n - 1) / n S beta if n is a power of two. In general a stage of factor f
/// takes f - 1 messages each way, and a pair of ranks adds 2 (alpha + S beta).
struct HalvingDoublingCost {
  CollectiveShape shape;
  Tuning tuning;

  constexpr RankTraffic sent_by(int rank) const noexcept {
    const HalvingStages stages(shape.ranks);
    const HalvingChunks chunks = HalvingChunks::of(tuning, shape.partial);
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

  constexpr CriticalPath path() const noexcept {
    const HalvingStages stages(shape.ranks);
    const bool has_pairs = stages.extra_ranks() > 0;
    CriticalPath path;
    if (has_pairs) {
      path = {2 * steps(shape.count), 2 * static_cast<double>(shape.bytes())};
    }
    for (std::size_t stage = 0; stage < stages.count(); ++stage) {
      const double peers = stages.factor(stage) - 1;
      const std::size_t longest = stages.longest_part(shape.count, stage);
      const std::size_t halved = size_bytes(stage > 0 || has_pairs ? shape.partial : shape.dtype);
      path.messages += 2 * peers * steps(longest);
      path.bytes += peers * static_cast<double>(longest * (halved + size_bytes(shape.dtype)));
    }
    return path;
  }

 private:
  constexpr double steps(std::size_t longest) const noexcept {
    const std::size_t messages = HalvingChunks::of(tuning, shape.partial).messages(longest, false);
    return static_cast<double>((messages + tuning.chunks_in_flight - 1) / tuning.chunks_in_flight);
  }
};

/// ring_collectives.hpp: (n - 1) (alpha + S / n beta) for the reduction, and equally for the all-gather.
struct RingCost {
  CollectiveShape shape;
  Tuning tuning;
  bool reduces;
  bool gathers;

  RankTraffic sent_by(int rank) const noexcept {
    const Blocks blocks = all_blocks();
    const std::size_t steps = shape.peers() * ((reduces ? 1 : 0) + (gathers ? 1 : 0));
    RankTraffic sent{1 + blocks.rounds() * steps * blocks.chunks_in_flight(), 1, 0};
    const auto block = [&](int distance) { return blocks.block((rank + shape.ranks - distance) % shape.ranks).count; };
    for (int step = 0; step < shape.ranks - 1; ++step) {
      const DType reduced = step == 0 ? shape.dtype : shape.partial;
      sent.payload_bytes += reduces ? block(step + 1) * size_bytes(reduced) : 0;
      sent.payload_bytes += gathers ? block(step) * size_bytes(shape.dtype) : 0;
    }
    return sent;
  }

  CriticalPath path() const noexcept {
    const Blocks blocks = all_blocks();
    const auto peers = static_cast<double>(shape.peers());
    const auto count = static_cast<double>(blocks.block(0).count);
    const auto element = static_cast<double>(size_bytes(shape.dtype));
    const auto partial = static_cast<double>(size_bytes(shape.partial));
    const double width = (reduces ? element + (peers - 1) * partial : 0) + (gathers ? peers * element : 0);
    return {static_cast<double>(blocks.rounds()) * peers * ((reduces ? 1 : 0) + (gathers ? 1 : 0)), count * width};
  }

 private:
  Blocks all_blocks() const noexcept { return {shape.count, shape.dtype, shape.ranks, tuning, shape.partial}; }
};

/// direct_exchange.hpp: (n - 1) (alpha + S / n beta) for the reduction, and equally for the all-gather.
struct DirectReduceScatterCost {
  CollectiveShape shape;
  Tuning tuning;
  bool gathers;

  RankTraffic sent_by(int rank) const noexcept {
    const Blocks blocks = all_blocks();
    const std::size_t own = blocks.block(rank).bytes;
    return {shape.peers() * (1 + blocks.rounds() * (gathers ? 2 : 1) * blocks.chunks_in_flight()), shape.peers(),
            shape.bytes() - own + (gathers ? shape.peers() * own : 0)};
  }

  CriticalPath path() const noexcept {
    const Blocks blocks = all_blocks();
    const double exchanges = static_cast<double>(shape.peers()) * (gathers ? 2 : 1);
    return {static_cast<double>(blocks.rounds()) * exchanges, exchanges * static_cast<double>(blocks.block(0).bytes)};
  }

 private:
  Blocks all_blocks() const noexcept { return {shape.count, shape.dtype, shape.ranks, tuning}; }
};

/// In this order the first of the cheapest counts.
enum class AllReduceAlgorithm : std::uint8_t {
  direct_exchange,
  direct_reduce_scatter,
  recursive_doubling,
  halving_doubling,
  ring,
};
inline constexpr std::size_t all_reduce_algorithms = 5;

const char* name(AllReduceAlgorithm algorithm) noexcept;

/// Whether the algorithm can reduce the buffer: two of them send it in headers, two are for few ranks.
inline bool can_run(AllReduceAlgorithm algorithm, const CollectiveShape& shape, const Tuning& tuning) noexcept {
  switch (algorithm) {
    case AllReduceAlgorithm::direct_exchange:
      return shape.ranks <= tuning.direct_exchange_ranks && shape.bytes() <= tuning.small_bytes;
    case AllReduceAlgorithm::direct_reduce_scatter:
      return shape.ranks <= tuning.direct_exchange_ranks && tuning.direct_reduce_scatter;
    case AllReduceAlgorithm::recursive_doubling: return shape.partial_bytes() <= tuning.small_bytes;
    default: return true;
  }
}

/// The choice by Tuning's thresholds.
inline AllReduceAlgorithm fixed_algorithm(const CollectiveShape& shape, const Tuning& tuning) noexcept {
  const bool few = shape.ranks <= tuning.direct_exchange_ranks;
  if (few && shape.bytes() <= tuning.small_bytes) {
    return AllReduceAlgorithm::direct_exchange;
  }
  if (shape.partial_bytes() <= tuning.small_bytes) {
    return AllReduceAlgorithm::recursive_doubling;
  }
  return few && tuning.direct_reduce_scatter ? AllReduceAlgorithm::direct_reduce_scatter : AllReduceAlgorithm::ring;
}

/// The time that the cost model gives.
double modelled_seconds(AllReduceAlgorithm algorithm, const CollectiveShape& shape, const Tuning& tuning,
                        const LinkCost& link) noexcept;

/// Plain fields: rank 0 sends it to the other ranks. Entries are for lengths up to 1, 2, 4, ... bytes, for partial
/// results as wide as elements, and for wider ones.
class AlgorithmTable {
 public:
  static AlgorithmTable cheapest(int ranks, const Tuning& tuning, const LinkCost& link) noexcept;

  /// The cheapest algorithm that can_run().
  AllReduceAlgorithm at(const CollectiveShape& shape, const Tuning& tuning) const noexcept {
    const auto width = static_cast<std::size_t>(shape.bytes() < 2 ? 0 : std::bit_width(shape.bytes() - 1));
    const std::size_t entry = std::min(lengths - 1, width);
    const AllReduceAlgorithm algorithm = entries_[shape.partial == shape.dtype ? 0 : 1][entry];
    return can_run(algorithm, shape, tuning) ? algorithm : AllReduceAlgorithm::halving_doubling;
  }

  /// Whether a table that came from rank 0 has possible entries only.
  bool is_valid() const noexcept;

  /// "alpha 2e-06 s, beta 1e-10 s/byte: direct exchange to 8192 bytes, then ring".
  std::string description() const;

 private:
  static constexpr std::size_t lengths = 48;

  LinkCost link_{};
  std::array<std::array<AllReduceAlgorithm, lengths>, 2> entries_{};
};

/// A channel's choice. The first all_reduce settles it.
struct ChannelAlgorithms {
  AlgorithmChoice choice{};
  bool is_settled = false;
  AlgorithmTable table{};

  bool is_fixed() const noexcept { return choice.basis == AlgorithmChoice::Basis::fixed; }
};

inline const char* name(AllReduceAlgorithm algorithm) noexcept {
  switch (algorithm) {
    case AllReduceAlgorithm::direct_exchange: return "direct exchange";
    case AllReduceAlgorithm::direct_reduce_scatter: return "direct reduce-scatter";
    case AllReduceAlgorithm::recursive_doubling: return "recursive doubling";
    case AllReduceAlgorithm::halving_doubling: return "halving-doubling";
    default: return "ring";
  }
}

inline double modelled_seconds(AllReduceAlgorithm algorithm, const CollectiveShape& shape, const Tuning& tuning,
                               const LinkCost& link) noexcept {
  switch (algorithm) {
    case AllReduceAlgorithm::direct_exchange: return DirectExchangeCost{shape}.path().seconds(link);
    case AllReduceAlgorithm::direct_reduce_scatter:
      return DirectReduceScatterCost{shape, tuning, true}.path().seconds(link);
    case AllReduceAlgorithm::recursive_doubling: return RecursiveDoublingCost{shape}.path().seconds(link);
    case AllReduceAlgorithm::halving_doubling: return HalvingDoublingCost{shape, tuning}.path().seconds(link);
    default: return RingCost{shape, tuning, true, true}.path().seconds(link);
  }
}

inline AlgorithmTable AlgorithmTable::cheapest(int ranks, const Tuning& tuning, const LinkCost& link) noexcept {
  AlgorithmTable table;
  table.link_ = link;
  for (std::size_t wide = 0; wide < 2; ++wide) {
    for (std::size_t entry = 0; entry < lengths; ++entry) {
      const DType dtype = wide == 0 ? DType::f32 : DType::bf16;
      const std::size_t count = ((std::size_t{1} << entry) + size_bytes(dtype) - 1) / size_bytes(dtype);
      const CollectiveShape shape{ranks, count, dtype, DType::f32};
      AllReduceAlgorithm& best = table.entries_[wide][entry];
      best = AllReduceAlgorithm::ring;
      for (std::size_t k = all_reduce_algorithms - 1; k-- > 0;) {
        const auto other = static_cast<AllReduceAlgorithm>(k);
        const bool is_cheaper =
            modelled_seconds(other, shape, tuning, link) <= modelled_seconds(best, shape, tuning, link);
        best = is_cheaper && can_run(other, shape, tuning) ? other : best;
      }
    }
  }
  return table;
}

inline bool AlgorithmTable::is_valid() const noexcept {
  return std::all_of(entries_.begin(), entries_.end(), [](const auto& row) {
    return std::all_of(row.begin(), row.end(), [](AllReduceAlgorithm algorithm) {
      return static_cast<std::size_t>(algorithm) < all_reduce_algorithms;
    });
  });
}

inline std::string AlgorithmTable::description() const {
  const auto& row = entries_[0];
  std::string text = to_string(link_) + ": ";
  for (std::size_t entry = 0; entry + 1 < lengths; ++entry) {
    if (row[entry] != row[entry + 1]) {
      text += format_text("{} to {} bytes, then ", {name(row[entry]), std::size_t{1} << entry});
    }
  }
  return text + name(row[lengths - 1]);
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
