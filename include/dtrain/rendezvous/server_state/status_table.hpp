#pragma once
/// @file
/// status_table(): what the ranks of a job are doing, as lines of text; ranks in the same place share a line. Pure.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// The latest status of a rank.
struct ReportedStatus {
  enum class Kind : std::uint8_t {
    lost,    ///< the rank's connection ended before the failure, or was the failure
    silent,  ///< the rank is connected, and does not send what is due
    ended,   ///< its connection has ended after the failure, without a further status
    current,
  };

  int rank = 0;
  std::string host{};
  std::optional<RankStatus> status{};  ///< nullopt: the rank has sent none
  Kind kind = Kind::current;
  std::chrono::milliseconds age{};  ///< time since it was received
};

/// At most `most_lines` lines, and one that counts the rest. The ranks with the least progress come first: lost ones,
/// then by steps, operations and ready gradients. An operation that a rank is in names the ranks of its channel that
/// have not begun it.
std::vector<std::string> status_table(const std::vector<ReportedStatus>& ranks, std::size_t most_lines = 12);

/// The line above: "what each rank did when rank 3 was lost (rank, host, step, phase):".
std::string status_heading(const Cause& cause);

/// The end of each line above a table.
inline constexpr const char* status_columns = "(rank, host, step, phase)";

}  // namespace DTRAIN_NAMESPACE::rendezvous

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

/// Ranks in the same place.
struct StatusPlace {
  std::vector<int> ranks{};
  std::vector<std::string> hosts{};
  std::chrono::milliseconds age{};        ///< the longest of their ages
  std::chrono::milliseconds unchanged{};  ///< and of the times for which their statuses had not changed
  const ReportedStatus* first = nullptr;  ///< the rank of `unchanged`; null: they have sent no status
  bool is_one_thread = true;              ///< whether all of their threads do the same
};

/// Progress, then text: the order of the lines, and what the ranks of a line share.
using PlaceKey =
    std::tuple<ReportedStatus::Kind, std::uint64_t, std::uint64_t, std::uint32_t, std::string, std::string>;

inline const RankStatus::Channel* channel_in_operation(const RankStatus& status) noexcept {
  return status.channels.empty() || !status.channels.front().is_in_operation ? nullptr : &status.channels.front();
}

/// ", which ranks 2 and 3 have not begun": other ranks of the channel, by statuses that came while `waiting` waited.
inline std::string missing_ranks_text(const std::vector<ReportedStatus>& ranks, const ReportedStatus& waiting,
                                      const RankStatus::Channel& channel) {
  const std::chrono::milliseconds longest = waiting.age + std::chrono::milliseconds(channel.unchanged_ms);
  std::vector<int> missing;
  for (const ReportedStatus& other : ranks) {
    if (!other.status || other.age > longest) continue;
    for (const RankStatus::Channel& each : other.status->channels) {
      if (each.name == channel.name && each.called < channel.sequence) missing.push_back(other.rank);
    }
  }
  return missing.empty()
             ? std::string()
             : format_text(", which {} {} not begun", {rank_list(missing, 4), missing.size() == 1 ? "has" : "have"});
}

inline const char* phase_text(const RankStatus& status) noexcept {
  switch (status.phase) {
    case RankPhase::backward: return "in the backward pass";
    case RankPhase::finish: return "in finish()";
    case RankPhase::unwinding: return "has thrown an exception";
    case RankPhase::outside: break;
  }
  return channel_in_operation(status) != nullptr ? "in a collective"
         : status.step == 0                      ? "before its first step"
                                                 : "between steps";
}

/// The text that follows the phase and its time.
inline std::string details_text(const RankStatus& status) {
  std::string text;
  if (status.phase == RankPhase::backward && status.parameters != 0) {
    append_text(text, ", {} of {} gradients ready", {status.ready, status.parameters});
    if (!status.missing.empty()) append_text(text, ", not yet {}", {status.missing});
  }
  if (const RankStatus::Channel* channel = channel_in_operation(status)) {
    append_text(text, "; in {}", {channel->call});
    if (channel->sequence != 0) append_text(text, ", operation {} of channel '{}'", {channel->sequence, channel->name});
  }
  return text;
}

inline std::string line_of(const PlaceKey& key, const StatusPlace& place, const std::vector<ReportedStatus>& ranks) {
  const auto& [kind, step, operations, ready, phase, details] = key;
  std::string line = format_text("  {}", {rank_list(place.ranks, 8)});
  if (place.hosts.size() == 1) append_text(line, " (host {})", {place.hosts.front()});
  const char* const state = kind == ReportedStatus::Kind::lost     ? "lost"
                            : kind == ReportedStatus::Kind::silent ? "sends nothing"
                            : kind == ReportedStatus::Kind::ended  ? "has ended"
                                                                   : "";
  if (place.first == nullptr)
    return line + format_text(": {}, before its first status", {*state == '\0' ? "joined" : state});
  append_text(line, ", step {}: ", {step});
  if (*state != '\0') append_text(line, "{}; {} before: ", {state, duration_text(place.age)});
  line += phase;
  if (place.unchanged >= std::chrono::milliseconds(100)) append_text(line, " for {}", {duration_text(place.unchanged)});
  line += details;
  const RankStatus& status = *place.first->status;
  if (const RankStatus::Channel* channel = channel_in_operation(status)) {
    line += missing_ranks_text(ranks, *place.first, *channel);
  } else if (status.phase != RankPhase::unwinding && !status.thread.empty()) {
    append_text(line, "; {} thread {}", {place.is_one_thread ? "its" : "one's", status.thread});
  }
  return line;
}

}  // namespace detail

DTRAIN_DEFINED std::vector<std::string> status_table(const std::vector<ReportedStatus>& ranks, std::size_t most_lines) {
  std::map<detail::PlaceKey, detail::StatusPlace> places;
  for (const ReportedStatus& rank : ranks) {
    const RankStatus nothing;
    const RankStatus& status = rank.status ? *rank.status : nothing;
    std::uint64_t operations = 0;
    for (const RankStatus::Channel& each : status.channels)
      operations = std::max(operations, each.called);
    detail::StatusPlace& place = places[{rank.kind, status.step, operations, status.ready,
                                         rank.status ? detail::phase_text(status) : "", detail::details_text(status)}];
    place.ranks.push_back(rank.rank);
    if (std::find(place.hosts.begin(), place.hosts.end(), rank.host) == place.hosts.end()) {
      place.hosts.push_back(rank.host);
    }
    place.age = std::max(place.age, rank.age);
    if (!rank.status) continue;
    const std::chrono::milliseconds unchanged(status.unchanged_ms);
    place.is_one_thread =
        place.is_one_thread && (place.first == nullptr || place.first->status->thread == status.thread);
    if (place.first == nullptr || unchanged > place.unchanged) {
      place.first = &rank;
      place.unchanged = unchanged;
    }
  }
  std::vector<std::string> lines;
  std::size_t further_ranks = 0;
  for (auto& [key, place] : places) {
    std::sort(place.ranks.begin(), place.ranks.end());
    if (lines.size() == most_lines) {
      further_ranks += place.ranks.size();
    } else {
      lines.push_back(detail::line_of(key, place, ranks));
    }
  }
  if (further_ranks != 0) {
    lines.push_back(format_text("  and {} {} in {} other {}",
                                {further_ranks, further_ranks == 1 ? "rank" : "ranks", places.size() - most_lines,
                                 places.size() == most_lines + 1 ? "place" : "places"}));
  }
  return lines;
}

DTRAIN_DEFINED std::string status_heading(const Cause& cause) {
  const char* const what = cause.kind == CauseKind::lost           ? "was lost"
                           : cause.kind == CauseKind::timeout      ? "timed out"
                           : cause.kind == CauseKind::disagreement ? "disagreed"
                                                                   : "failed";
  return format_text("what each rank did when {} {} {}:",
                     {cause.rank < 0 ? std::string("the job") : "rank " + std::to_string(cause.rank),
                      cause.rank < 0 ? "failed" : what, status_columns});
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

#endif  // DTRAIN_DEFINITIONS
