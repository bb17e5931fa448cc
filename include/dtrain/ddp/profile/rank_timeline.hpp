#pragma once
/// @file
/// RankTimeline: the step records of one rank, as it sends them to rank 0.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/ddp/profile/step_record.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The records of one rank, and the offset of its clock to rank 0's.
struct RankTimeline {
  int rank = 0;
  std::string host;
  std::chrono::nanoseconds clock_offset{};       ///< a time of this rank plus this is rank 0's time
  std::chrono::nanoseconds clock_uncertainty{};  ///< bound on the offset's error; 0 if the clock is the same
  std::vector<StepRecord> records{};
};

inline constexpr std::size_t step_record_bytes = 8 + 4 + 1 + 8;

/// The most bytes for the records of all ranks of a timeline. Beyond it, each rank's latest records are kept.
inline constexpr std::size_t max_timeline_bytes = std::size_t{64} << 20;

void fields(Serializer& of, StepRecord& record);

/// All but the rank, which the reader knows.
void fields(Serializer& of, RankTimeline& timeline);

/// @param most number of records; the latest are kept
std::string serialise(RankTimeline timeline, std::size_t most);

/// @returns nullopt for bytes that serialise does not produce
std::optional<RankTimeline> parse_rank_timeline(int rank, std::string_view bytes);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void fields(Serializer& of, StepRecord& record) {
  std::chrono::nanoseconds time = record.time.time_since_epoch();
  of.number(record.step);
  of.number(record.index);
  of.choice(record.event, StepEvent::begun, StepEvent::finished);
  fields(of, time);
  record.time = StepRecord::Clock::time_point(time);
}

DTRAIN_DEFINED void fields(Serializer& of, RankTimeline& timeline) {
  of.raw_text(timeline.host, 256);
  fields(of, timeline.clock_offset);
  fields(of, timeline.clock_uncertainty);
  of.list(timeline.records, 0, max_timeline_bytes / step_record_bytes,
          [&of](StepRecord& record) { fields(of, record); });
}

DTRAIN_DEFINED std::string serialise(RankTimeline timeline, std::size_t most) {
  std::vector<StepRecord>& records = timeline.records;
  if (records.size() > most) {
    records.erase(records.begin(), records.end() - static_cast<std::ptrdiff_t>(most));
  }
  return to_bytes(std::move(timeline));
}

DTRAIN_DEFINED std::optional<RankTimeline> parse_rank_timeline(int rank, std::string_view bytes) {
  std::optional<RankTimeline> timeline = try_from_bytes<RankTimeline>(bytes);
  if (timeline) {
    timeline->rank = rank;
  }
  return timeline;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
