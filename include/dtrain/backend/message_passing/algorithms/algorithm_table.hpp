#pragma once
/// @file
/// AlgorithmTable: the cheapest all-reduce over messages for each length, by alpha and beta.

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
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/version.hpp"

/// Each algorithm's `..._path()` has the messages and bytes on its longest chain. Below, n ranks reduce S bytes. A rank
/// sends one message at a time (single-port model). Chunks that are in flight together count as one message; headers
/// with their first chunk, and combining not at all. Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of
/// collective communication operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005), 4; the files of the
/// algorithms name others.
namespace DTRAIN_NAMESPACE::backend::message_passing {

struct CriticalPath {
  double messages = 0;
  double bytes = 0;

  constexpr double seconds(const LinkCost& link) const noexcept { return link.seconds(messages, bytes); }
};

/// A buffer and the ranks that reduce it.
struct CollectiveShape {
  int ranks;
  std::size_t count;  ///< elements of the whole buffer
  DType dtype;
  DType partial;  ///< type of partial results

  constexpr std::size_t bytes() const noexcept { return count * size_bytes(dtype); }
  constexpr std::size_t partial_bytes() const noexcept { return count * size_bytes(partial); }
  constexpr double peers() const noexcept { return ranks - 1; }
};

/// direct_exchange.hpp: alpha + (n - 1) S beta, because its messages are independent and in flight together.
constexpr CriticalPath direct_exchange_path(const CollectiveShape& shape) noexcept {
  return {1, shape.peers() * static_cast<double>(shape.bytes())};
}

/// halving_doubling.hpp, recursive_doubling(): log2(n) (alpha + S beta); two messages more if n is no power of two.
constexpr CriticalPath recursive_doubling_path(const CollectiveShape& shape) noexcept {
  const auto ranks = static_cast<unsigned>(shape.ranks);
  const auto all = static_cast<double>(shape.bytes());
  const auto partial = static_cast<double>(shape.partial_bytes());
  const double steps = std::bit_width(ranks) - 1;
  return std::has_single_bit(ranks) ? CriticalPath{steps, all + (steps - 1) * partial}
                                    : CriticalPath{steps + 2, 2 * all + steps * partial};
}

/// halving_doubling.hpp: 2 log2(n) alpha + 2 (n - 1) / n S beta if n is a power of two. In general a stage of factor f
/// takes f - 1 messages each way, and a pair of ranks adds 2 (alpha + S beta).
constexpr CriticalPath halving_doubling_path(const CollectiveShape& shape, const Tuning& tuning) noexcept {
  const HalvingStages stages(shape.ranks);
  const bool has_pairs = stages.extra_ranks() > 0;
  const auto steps = [&](std::size_t longest) {
    const std::size_t messages = HalvingChunks::of(tuning, shape.partial).messages(longest, false);
    return static_cast<double>((messages + tuning.chunks_in_flight - 1) / tuning.chunks_in_flight);
  };
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

/// ring_collectives.hpp: (n - 1) (alpha + S / n beta) for the reduction, and equally for the all-gather.
inline CriticalPath ring_path(const CollectiveShape& shape, const Tuning& tuning) noexcept {
  const Blocks blocks(shape.count, shape.dtype, shape.ranks, tuning, shape.partial);
  const auto count = static_cast<double>(blocks.block(0).count);
  const auto element = static_cast<double>(size_bytes(shape.dtype));
  const auto partial = static_cast<double>(size_bytes(shape.partial));
  const double width = element + (shape.peers() - 1) * partial + shape.peers() * element;
  return {static_cast<double>(blocks.rounds()) * shape.peers() * 2, count * width};
}

/// direct_exchange.hpp: (n - 1) (alpha + S / n beta) for the reduction, and equally for the all-gather.
inline CriticalPath direct_reduce_scatter_path(const CollectiveShape& shape, const Tuning& tuning) noexcept {
  const Blocks blocks(shape.count, shape.dtype, shape.ranks, tuning);
  const double exchanges = shape.peers() * 2;
  return {static_cast<double>(blocks.rounds()) * exchanges, exchanges * static_cast<double>(blocks.block(0).bytes)};
}

/// The first of equally cheap algorithms in this order is chosen.
enum class AllReduceAlgorithm : std::uint8_t {
  direct_exchange,
  direct_reduce_scatter,
  recursive_doubling,
  halving_doubling,
  ring,
};
inline constexpr std::size_t all_reduce_algorithms = 5;

inline const char* name(AllReduceAlgorithm algorithm) noexcept {
  switch (algorithm) {
    case AllReduceAlgorithm::direct_exchange: return "direct exchange";
    case AllReduceAlgorithm::direct_reduce_scatter: return "direct reduce-scatter";
    case AllReduceAlgorithm::recursive_doubling: return "recursive doubling";
    case AllReduceAlgorithm::halving_doubling: return "halving-doubling";
    default: return "ring";
  }
}

/// Whether the algorithm can reduce the buffer: two algorithms send it in headers, two are for few ranks.
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

/// The time that the cost model gives.
inline double modelled_seconds(AllReduceAlgorithm algorithm, const CollectiveShape& shape, const Tuning& tuning,
                               const LinkCost& link) noexcept {
  switch (algorithm) {
    case AllReduceAlgorithm::direct_exchange: return direct_exchange_path(shape).seconds(link);
    case AllReduceAlgorithm::direct_reduce_scatter: return direct_reduce_scatter_path(shape, tuning).seconds(link);
    case AllReduceAlgorithm::recursive_doubling: return recursive_doubling_path(shape).seconds(link);
    case AllReduceAlgorithm::halving_doubling: return halving_doubling_path(shape, tuning).seconds(link);
    default: return ring_path(shape, tuning).seconds(link);
  }
}

/// Plain fields: rank 0 sends it to the other ranks. Entry k is for lengths up to 2^k bytes; there are entries for
/// partial results as wide as elements, and for wider ones.
class AlgorithmTable {
 public:
  static AlgorithmTable cheapest(int ranks, const Tuning& tuning, const LinkCost& link) noexcept {
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

  /// The cheapest algorithm that can_run().
  AllReduceAlgorithm at(const CollectiveShape& shape, const Tuning& tuning) const noexcept {
    const auto width = static_cast<std::size_t>(shape.bytes() < 2 ? 0 : std::bit_width(shape.bytes() - 1));
    const std::size_t entry = std::min(lengths - 1, width);
    const AllReduceAlgorithm algorithm = entries_[shape.partial == shape.dtype ? 0 : 1][entry];
    return can_run(algorithm, shape, tuning) ? algorithm : AllReduceAlgorithm::halving_doubling;
  }

  /// Whether a table that came from rank 0 has possible entries only.
  bool is_valid() const noexcept {
    return std::all_of(entries_.begin(), entries_.end(), [](const auto& row) {
      return std::all_of(row.begin(), row.end(), [](AllReduceAlgorithm algorithm) {
        return static_cast<std::size_t>(algorithm) < all_reduce_algorithms;
      });
    });
  }

  /// "alpha 2e-06 s, beta 1e-10 s/byte: direct exchange to 8192 bytes, then ring".
  std::string description() const {
    const auto& row = entries_[0];
    std::string text = to_string(link_) + ": ";
    for (std::size_t entry = 0; entry + 1 < lengths; ++entry) {
      if (row[entry] != row[entry + 1]) {
        text += format_text("{} to {} bytes, then ", {name(row[entry]), std::size_t{1} << entry});
      }
    }
    return text + name(row[lengths - 1]);
  }

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

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
