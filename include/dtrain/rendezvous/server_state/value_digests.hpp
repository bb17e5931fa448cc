#pragma once
/// @file
/// ValueDigests of RankStatuses: finds ranks whose weights differ, by digests before the same steps. differing_ranks():
/// which of the ranks' texts differ.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// "rank 3", "ranks 1 and 3", "ranks 1, 2, 3 and 12 more".
inline std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t most_named = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const std::size_t named = std::min(ranks.size(), most_named);
  for (std::size_t i = 0; i < named; ++i) {
    const bool is_last = i + 1 == ranks.size();
    text += i == 0 ? "" : is_last ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return ranks.size() > named ? format_text("{} and {} more", {text, ranks.size() - named}) : text;
}

/// Texts that differ, by the ranks' numbers in the job.
struct DifferingRanks {
  std::string text;         ///< "rank 2 has other values than the other ranks"
  std::optional<int> rank;  ///< the first of `text`, if most ranks have the others' text
  std::string common;       ///< the most common text
};

/// The text of most ranks counts as that of the other ranks; of two as frequent ones, that of the lower rank.
inline DifferingRanks differing_ranks(const std::vector<int>& job_ranks, const std::vector<std::string>& texts) {
  const auto frequency = [&](const std::string& text) { return std::count(texts.begin(), texts.end(), text); };
  const auto common = std::max_element(texts.begin(), texts.end(), [&](const std::string& a, const std::string& b) {
    return frequency(a) < frequency(b);
  });
  std::vector<int> with, without;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    (texts[rank] == *common ? with : without).push_back(job_ranks[rank]);
  }
  const bool are_most = with.size() > without.size();
  return {format_text("{} {} other values than {}",
                      {ranks_text(without), without.size() == 1 ? "has" : "have", ranks_text(with)}),
          are_most ? std::optional<int>(without.front()) : std::nullopt, *common};
}

inline constexpr const char* how_values_drift =
    "a rank left out a step or an update, or set values that the other ranks did not set, or its update does not "
    "depend on the reduced gradients alone, or its model was freed before the wrapper";
inline constexpr const char* how_values_are_compared =
    "with DTRAIN_CHECK_VALUES=1 the job ends at the first step after which values differ, and with "
    "DTRAIN_CHECK_VALUES=0 values are not compared";

/// A difference is told once for a wrapper.
class ValueDigests {
 public:
  /// After a rank's status. @param ranks the number of ranks in the job @returns what to log; empty: nothing
  std::string receive(int rank, const ValuesDigest& values, std::size_t ranks);
  void forget(int rank) noexcept { ranks_.erase(rank); }

 private:
  /// Digests of the present wrapper that are kept: the ranks' statuses are some steps apart.
  static constexpr std::size_t most_digests = 4;

  std::map<int, std::deque<ValuesDigest>> ranks_;
  bool has_told_ = false;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

#if DTRAIN_DEFINITIONS

namespace DTRAIN_NAMESPACE::rendezvous {

DTRAIN_DEFINED std::string ValueDigests::receive(int rank, const ValuesDigest& values, std::size_t ranks) {
  if (values.steps == 0 || values.ranks != ranks || ranks < 2) return {};
  std::deque<ValuesDigest>& own = ranks_[rank];
  if (!own.empty() && own.back().steps == values.steps) return {};
  if (!own.empty() && own.back().steps > values.steps) {  // another wrapper's
    for (auto& each : ranks_)
      each.second.clear();
    has_told_ = false;
  }
  own.push_back(values);
  if (own.size() > most_digests) own.pop_front();
  if (has_told_ || ranks_.size() != ranks) return {};
  std::vector<int> numbers;
  std::vector<std::string> digests;
  for (const auto& [each, known] : ranks_) {
    const auto found =
        std::find_if(known.begin(), known.end(), [&](const ValuesDigest& of) { return of.steps == values.steps; });
    if (found == known.end()) return {};
    numbers.push_back(each);
    digests.push_back(std::to_string(found->digest));
  }
  const auto is_first = [&](const std::string& digest) { return digest == digests.front(); };
  if (std::all_of(digests.begin(), digests.end(), is_first)) return {};
  has_told_ = true;
  return format_text("the ranks' values of the model differ after {} steps: {}; {}; {}",
                     {values.steps, differing_ranks(numbers, digests).text, how_values_drift, how_values_are_compared});
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

#endif  // DTRAIN_DEFINITIONS
