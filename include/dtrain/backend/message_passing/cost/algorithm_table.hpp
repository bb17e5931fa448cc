#pragma once
/// @file
/// AlgorithmTable: the all_reduce algorithm for each length, the cheapest by alpha and beta.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "dtrain/backend/algorithm_choice.hpp"
#include "dtrain/backend/message_passing/cost/algorithm_costs.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

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

  /// Of an algorithm that can_run().
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
