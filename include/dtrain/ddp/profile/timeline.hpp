#pragma once
/// @file
/// Timeline: the step records of all ranks as Chrome trace JSON, for Perfetto and chrome://tracing; RankTimeline: the
/// records of one rank, as a message to rank 0.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
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

/// The most bytes for the records of all ranks of a timeline. If there are more, each rank's latest records are kept.
inline constexpr std::size_t max_timeline_bytes = std::size_t{64} << 20;

void fields(Serializer& of, StepRecord& record);

/// All members but the rank, which the reader knows.
void fields(Serializer& of, RankTimeline& timeline);

/// @param most number of records; the latest are kept
std::string serialise(RankTimeline timeline, std::size_t most);

/// @returns nullopt for bytes that serialise does not produce
std::optional<RankTimeline> parse_rank_timeline(int rank, std::string_view bytes);

/// One trace process for each rank, with four rows: steps, ready gradients, buckets from launch to start, and
/// reductions. One event a line. Times count from the earliest record.
/// @param parameters names, in the order of parameters(); a missing name is replaced by its index
std::string timeline_json(std::span<const RankTimeline> ranks, std::span<const std::string> parameters = {});

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <map>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// A JSON string. `text` is made printable, so only quotes and backslashes are escaped.
inline std::string json_string(const std::string& text) {
  std::string quoted = "\"";
  for (const char byte : sanitize(text)) {
    if (byte == '"' || byte == '\\') quoted += '\\';
    quoted += byte;
  }
  return quoted + '"';
}

/// Writes events, one a line.
class TraceEvents {
 public:
  using Time = StepRecord::Clock::time_point;

  TraceEvents(Time origin, std::string& text) : origin_(origin), text_(text) {}

  void of_rank(const RankTimeline& rank) {
    process_ = rank.rank;
    offset_ = rank.clock_offset;
  }

  void name(const char* what, int thread, const std::string& name) {
    line("\"ph\":\"M\",\"name\":\"" + std::string(what) + "\"", thread,
         ",\"args\":{\"name\":" + json_string(name) + "}");
  }
  void span(int thread, const std::string& name, std::uint64_t step, Time begin, Time end) {
    line("\"ph\":\"X\",\"name\":" + json_string(name), thread,
         ",\"ts\":" + microseconds(since_origin(begin)) + ",\"dur\":" + microseconds(std::max(end - begin, {})) +
             of_step(step));
  }
  void instant(int thread, const std::string& name, std::uint64_t step, Time time) {
    line("\"ph\":\"i\",\"s\":\"t\",\"name\":" + json_string(name), thread,
         ",\"ts\":" + microseconds(since_origin(time)) + of_step(step));
  }

 private:
  using Duration = StepRecord::Clock::duration;

  Duration since_origin(Time time) const { return time + offset_ - origin_; }

  /// "1234.567" for a duration that is not negative. Exact, and with a point in every locale of the program.
  static std::string microseconds(Duration duration) {
    const std::int64_t count = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
    return format_text("{}.{}", {count / 1000, std::to_string(1000 + count % 1000).substr(1)});
  }
  static std::string of_step(std::uint64_t step) { return ",\"args\":{\"step\":" + std::to_string(step) + "}"; }

  void line(const std::string& what, int thread, const std::string& rest) {
    text_ += (first_ ? "\n{" : ",\n{") + what + ",\"pid\":" + std::to_string(process_) +
             ",\"tid\":" + std::to_string(thread) + rest + "}";
    first_ = false;
  }

  Time origin_;
  std::string& text_;
  int process_ = 0;
  std::chrono::nanoseconds offset_{};
  bool first_ = true;
};

/// Pairs begin and end records. A record whose other half the ring has lost is omitted.
class TracePairs {
 public:
  explicit TracePairs(TraceEvents& events) : events_(events) {}

  void add(const StepRecord& record, std::span<const std::string> parameters) {
    const std::string bucket = "bucket " + std::to_string(record.index);
    switch (record.event) {
      case StepEvent::begun: begin(step_, 0, record); break;
      case StepEvent::ready:
        events_.instant(1, record.index < parameters.size() ? parameters[record.index] : std::to_string(record.index),
                        record.step, record.time);
        break;
      case StepEvent::launched: begin(launch_, record.index, record); break;
      case StepEvent::started:
        end(launch_, record.index, 2, bucket, record);
        begin(reduce_, record.index, record);
        break;
      case StepEvent::reduced: end(reduce_, record.index, 3, bucket, record); break;
      case StepEvent::waiting: begin(wait_, 0, record); break;
      case StepEvent::finished:
        end(wait_, 0, 0, "waiting", record);
        end(step_, 0, 0, "step " + std::to_string(record.step), record);
        break;
    }
  }

 private:
  using Key = std::pair<std::uint64_t, std::uint32_t>;  ///< step, bucket
  using Open = std::map<Key, TraceEvents::Time>;

  static void begin(Open& open, std::uint32_t index, const StepRecord& record) {
    open[{record.step, index}] = record.time;
  }
  void end(Open& open, std::uint32_t index, int thread, const std::string& name, const StepRecord& record) {
    const auto found = open.find({record.step, index});
    if (found == open.end()) return;
    events_.span(thread, name, record.step, found->second, record.time);
    open.erase(found);
  }

  TraceEvents& events_;
  Open step_, launch_, reduce_, wait_;
};

inline StepRecord::Clock::time_point earliest(std::span<const RankTimeline> ranks) {
  std::optional<StepRecord::Clock::time_point> first;
  for (const RankTimeline& rank : ranks) {
    for (const StepRecord& record : rank.records) {
      const auto time = record.time + rank.clock_offset;
      first = first ? std::min(*first, time) : time;
    }
  }
  return first.value_or(StepRecord::Clock::time_point{});
}

}  // namespace detail

DTRAIN_DEFINED std::string timeline_json(std::span<const RankTimeline> ranks, std::span<const std::string> parameters) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  detail::TraceEvents events(detail::earliest(ranks), text);
  std::string clocks;
  for (const RankTimeline& rank : ranks) {
    events.of_rank(rank);
    events.name("process_name", 0, format_text("rank {} on {}", {rank.rank, rank.host}));
    constexpr const char* rows[] = {"step", "gradient ready", "launched, not started", "reduce"};
    for (int row = 0; row < 4; ++row) {
      events.name("thread_name", row, rows[row]);
    }
    detail::TracePairs pairs(events);
    for (const StepRecord& record : rank.records) {
      pairs.add(record, parameters);
    }
    if (rank.clock_uncertainty.count() != 0) {
      clocks += format_text("{}rank {} to within {} us",
                            {clocks.empty() ? "" : ", ", rank.rank, rank.clock_uncertainty.count() / 1000});
    }
  }
  const std::string clock = clocks.empty() ? "one clock" : "rank 0's clock; estimated over the store: " + clocks;
  return text + "\n],\"otherData\":{\"clock\":" + detail::json_string(clock) + "}}\n";
}

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

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
