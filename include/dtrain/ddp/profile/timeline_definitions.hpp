#pragma once
/// @file
/// Definition of timeline_json.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/profile/rank_timeline.hpp"
#include "dtrain/ddp/profile/step_record.hpp"
#include "dtrain/ddp/profile/timeline.hpp"

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

}  // namespace DTRAIN_NAMESPACE::ddp
