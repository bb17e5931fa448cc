#pragma once
/// @file
/// Timeline serialisation: a rank's records to bytes, and from untrusted bytes of another process.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/ddp/profile/step_record.hpp"
#include "dtrain/ddp/profile/timeline.hpp"
#include "dtrain/net/framing/byte_reader.hpp"
#include "dtrain/net/framing/byte_writer.hpp"

namespace DTRAIN_NAMESPACE::ddp {

inline constexpr std::size_t step_record_bytes = 8 + 4 + 1 + 8;

/// The most bytes for the records of all ranks of a timeline. Beyond it, each rank's latest records are kept.
inline constexpr std::size_t max_timeline_bytes = std::size_t{64} << 20;

/// A bound on times and clock offsets: no clock that counts from its host's start exceeds it, and sums and differences
/// of times that were read do not overflow.
inline constexpr std::chrono::nanoseconds max_timeline_time{std::int64_t{1} << 60};

namespace detail {

inline std::chrono::nanoseconds read_timeline_time(net::ByteReader& reader) noexcept {
  const std::chrono::nanoseconds time(reader.i64());
  if (time > max_timeline_time || time < -max_timeline_time) {
    reader.fail();
  }
  return time;
}

}  // namespace detail

/// @param most number of records; the latest are kept
inline std::string serialise(const RankTimeline& timeline, std::size_t most) {
  const std::size_t first = timeline.records.size() > most ? timeline.records.size() - most : 0;
  net::ByteWriter writer;
  writer.string(timeline.host.substr(0, 256)).i64(timeline.clock_offset.count());
  writer.i64(timeline.clock_uncertainty.count());
  for (const StepRecord& record : std::span(timeline.records).subspan(first)) {
    writer.u64(record.step).u32(record.index).u8(static_cast<std::uint8_t>(record.event));
    writer.i64(std::chrono::nanoseconds(record.time.time_since_epoch()).count());
  }
  return std::string(writer.characters());
}

/// @returns nullopt for bytes that serialise does not produce
inline std::optional<RankTimeline> parse_rank_timeline(int rank, const std::string& text) {
  net::ByteReader reader(text);
  RankTimeline timeline;
  timeline.rank = rank;
  timeline.host = reader.string(256);
  timeline.clock_offset = detail::read_timeline_time(reader);
  timeline.clock_uncertainty = detail::read_timeline_time(reader);
  if (!reader.ok() || reader.remaining() % step_record_bytes != 0) return std::nullopt;
  timeline.records.reserve(reader.remaining() / step_record_bytes);
  while (reader.remaining() != 0) {
    StepRecord record;
    record.step = reader.u64();
    record.index = reader.u32();
    const std::uint8_t event = reader.u8();
    record.time = StepRecord::Clock::time_point(detail::read_timeline_time(reader));
    if (event < 1 || event >= step_events) return std::nullopt;
    record.event = static_cast<StepEvent>(event);
    timeline.records.push_back(record);
  }
  return reader.finished() ? std::optional(std::move(timeline)) : std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::ddp
