#pragma once
/// @file
/// HalvingStages: partners and parts of each stage of recursive halving and doubling, for any number of ranks; pure.

#include <algorithm>
#include <array>
#include <cstddef>

#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/core/types/dtype.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Elements [begin, begin + count) of a buffer.
struct HalvingPart {
  std::size_t begin = 0;
  std::size_t count = 0;
};

/// Lengths of a step's messages, in elements.
struct HalvingChunks {
  std::size_t longest;    ///< chunk
  std::size_t in_header;  ///< most elements that a header carries

  /// @param partial type of partial results
  static constexpr HalvingChunks of(const Tuning& tuning, DType partial) noexcept {
    return {std::max<std::size_t>(1, tuning.chunk_bytes / size_bytes(partial)),
            tuning.small_bytes / size_bytes(partial)};
  }

  /// @param longest_range of any rank in the step @param compares the step begins with headers
  constexpr bool is_inline(std::size_t longest_range, bool compares) const noexcept {
    return compares && longest_range <= in_header;
  }

  /// Without headers.
  constexpr std::size_t messages(std::size_t longest_range, bool compares) const noexcept {
    const std::size_t whole = (longest_range + longest - 1) / longest;
    return is_inline(longest_range, compares) ? 0 : std::max<std::size_t>(1, whole);
  }
};

/// Participants are numbered 0..participants()-1. Stage s divides their blocks by factor(s): a group of factor(s)
/// participants, at distances that are multiples of distance(s), exchanges parts, and each keeps one. The factors are
/// the prime factors of the number of participants, the smallest first, so that neighbours exchange the longest parts.
/// The number of participants is the largest, up to the number of ranks, whose prime factors are at most `max_factor`.
/// In the pairs (0, 1), (2, 3), ... of the first 2 extra_ranks() ranks, the odd rank takes no part.
/// Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH",
/// Int. J. High Perform. Comput. Appl. 19 (2005), 4.5; with other factors than 2 as in M. Ruefenacht, M. Bull and S.
/// Booth, "Generalisation of recursive doubling for AllReduce", Parallel Computing 69 (2017).
/// Example with 13 ranks: rank 1 takes no part; 12 participants have stages of 2, 2 and 3, at distances 1, 2 and 4.
class HalvingStages {
 public:
  static constexpr int max_factor = 7;
  static constexpr std::size_t max_stages = 31;

  /// @param ranks at least 1
  explicit constexpr HalvingStages(int ranks) noexcept : ranks_(ranks), participants_(ranks) {
    while (!factorize()) {
      --participants_;
    }
  }

  constexpr int participants() const noexcept { return participants_; }
  constexpr int extra_ranks() const noexcept { return ranks_ - participants_; }
  constexpr std::size_t count() const noexcept { return count_; }
  constexpr int factor(std::size_t stage) const noexcept { return factors_[stage]; }

  constexpr int distance(std::size_t stage) const noexcept {
    int product = 1;
    for (std::size_t s = 0; s < stage; ++s) {
      product *= factors_[s];
    }
    return product;
  }

  /// Blocks of a part in the stage.
  constexpr std::size_t blocks(std::size_t stage) const noexcept {
    return static_cast<std::size_t>(participants_ / distance(stage + 1));
  }

  /// The part that a participant keeps, also its position in its group.
  constexpr int position(int participant, std::size_t stage) const noexcept {
    return participant / distance(stage) % factor(stage);
  }

  /// A part, in the stage, of the elements that a participant has kept until then. All blocks are equally long, but the
  /// last ones, which may be shorter or empty.
  constexpr HalvingPart part(std::size_t elements, int participant, std::size_t stage, int position) const noexcept {
    std::size_t first = static_cast<std::size_t>(position) * blocks(stage);
    for (std::size_t s = 0; s < stage; ++s) {
      first += static_cast<std::size_t>(this->position(participant, s)) * blocks(s);
    }
    const std::size_t begin = std::min(elements, first * block_length(elements));
    return {begin, std::min(elements - begin, longest_part(elements, stage))};
  }

  constexpr std::size_t longest_part(std::size_t elements, std::size_t stage) const noexcept {
    return std::min(elements, blocks(stage) * block_length(elements));
  }

  /// Whether a rank belongs to a pair with an odd rank that takes no part.
  constexpr bool is_paired(int rank) const noexcept { return rank < 2 * extra_ranks(); }
  constexpr bool takes_part(int rank) const noexcept { return !is_paired(rank) || rank % 2 == 0; }
  constexpr int participant(int rank) const noexcept { return is_paired(rank) ? rank / 2 : rank - extra_ranks(); }
  constexpr int rank(int participant) const noexcept {
    return participant < extra_ranks() ? 2 * participant : participant + extra_ranks();
  }

 private:
  constexpr std::size_t block_length(std::size_t elements) const noexcept {
    const auto participants = static_cast<std::size_t>(participants_);
    return (elements + participants - 1) / participants;
  }

  constexpr bool factorize() noexcept {
    count_ = 0;
    int rest = participants_;
    for (int factor = 2; factor <= max_factor; ++factor) {
      for (; rest % factor == 0; rest /= factor) {
        factors_[count_++] = factor;
      }
    }
    return rest == 1;
  }

  int ranks_;
  int participants_;
  std::size_t count_ = 0;
  std::array<int, max_stages> factors_{};
};

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
