#pragma once
/// @file
/// Timeline: all ranks' step records as Chrome trace JSON, which rank 0 writes. RankTimeline: one rank's message.
/// ClockOffset: rank 0's clock minus this rank's.

#include <algorithm>
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
#include "dtrain/core/error.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/checkpoint/atomic_file.hpp"
#include "dtrain/ddp/profile/step_record.hpp"
#include "dtrain/group/group_internals.hpp"
#include "dtrain/rendezvous/client/value_chunks.hpp"

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

/// @param most number of records; the latest are kept
std::string serialise(RankTimeline timeline, std::size_t most);

/// @returns nullopt for bytes that serialise does not produce
std::optional<RankTimeline> parse_rank_timeline(int rank, std::string_view bytes);

/// One trace process for each rank, with four rows: steps, ready gradients, buckets from launch to start, and
/// reductions. One event a line. Times count from the earliest record.
/// @param parameters names, in the order of parameters(); a missing name is replaced by its index
/// @param attempt of an elastic job, which the names of the processes then have; 0: the job is not elastic
std::string timeline_json(std::span<const RankTimeline> ranks, std::span<const std::string> parameters = {},
                          std::uint64_t attempt = 0);

/// Writes the trace to a file. Blocking: the file system. @throws as AtomicFile
void write_trace(const std::string& path, std::span<const RankTimeline> ranks, std::span<const std::string> parameters,
                 WritingAttempt attempt);

/// A time of this rank plus `offset` is rank 0's time, to within `uncertainty`. Offset and uncertainty are 0 if the
/// ranks share a host, because the processes of a host share the clock.
struct ClockOffset {
  std::chrono::nanoseconds offset{};
  std::chrono::nanoseconds uncertainty{};
};

namespace detail {

inline constexpr int clock_samples = 8;

inline std::chrono::nanoseconds now_on_step_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(StepRecord::Clock::now().time_since_epoch());
}

/// Rank 0's half of sample_clock_blocking.
template <class Store>
void serve_clock_blocking(const Store& store) {
  for (int sample = 0; sample < clock_samples; ++sample) {
    const std::string number = std::to_string(sample);
    store.take("request/" + number, 1).wait();
    store.set("reply/" + number, to_bytes(now_on_step_clock())).wait();
  }
}

/// Uses the request with the shortest round trip (Cristian, "Probabilistic clock synchronization", 1989): rank 0 read
/// its clock at some moment between request and reply.
template <class Store>
ClockOffset sample_clock_blocking(const Store& store) {
  ClockOffset best{{}, std::chrono::nanoseconds::max()};
  for (int sample = 0; sample < clock_samples; ++sample) {
    const std::string number = std::to_string(sample);
    const std::chrono::nanoseconds before = now_on_step_clock();
    store.set("request/" + number, "").wait();
    const std::string reply = store.take("reply/" + number, 1).wait();
    const std::chrono::nanoseconds after = now_on_step_clock();
    const auto theirs = from_bytes<std::chrono::nanoseconds>(reply, "rank 0's time");
    if (const auto half = (after - before) / 2; half < best.uncertainty) {
      best = {theirs - before - half, std::max(half, std::chrono::nanoseconds(1))};
    }
  }
  return best;
}

}  // namespace detail

/// Offset of this rank's clock. Collective, blocking: rank 0 serves the ranks of other hosts one after the other, with
/// a few round trips to the store each. @param store the group's store, with a prefix that nothing else uses meanwhile
template <class Store>
ClockOffset clock_offset_blocking(const Store& store, int rank, int world_size, int node_rank) {
  if (world_size == 1) {
    return {};
  }
  if (rank == 0) {
    store.set("node", std::to_string(node_rank)).wait();
    for (int other = 1; other < world_size; ++other) {
      const std::string key = "rank " + std::to_string(other);
      if (store.take(key, 1).wait() == "other node") {
        detail::serve_clock_blocking(store.with_prefix(key + "/"));
      }
    }
    return {};
  }
  const bool same_node = store.take("node", world_size - 1).wait() == std::to_string(node_rank);
  const std::string key = "rank " + std::to_string(rank);
  store.set(key, same_node ? "same node" : "other node").wait();
  return same_node ? ClockOffset{} : detail::sample_clock_blocking(store.with_prefix(key + "/"));
}

/// Rank 0 writes the records of all ranks (DistributedDataParallel::records) to `path` as a trace for Perfetto and
/// chrome://tracing, on rank 0's clock. The clock offsets of ranks on other hosts are estimated now; the trace contains
/// their uncertainty. Beyond max_timeline_bytes each rank's latest records are kept. In an elastic job the records are
/// those of the present attempt, whose number is in the trace; name a file for each (Elastic::attempt) to keep all.
/// Collective, blocking: until rank 0 has written the file.
/// @param parameters names of the gradients, in the order of parameters(); rank 0's are used
/// @throws Error on every rank, with the same sentence, if the file cannot be written; the job's first cause
/// @ingroup times
template <class Group>
void write_timeline(const Group& group, const std::string& path, std::vector<StepRecord> records,
                    std::span<const std::string> parameters = {}) {
  const auto store =
      with_call_purpose(group.store().with_prefix("dtrain/timeline/"), "writing the file " + sanitize(path));
  const int ranks = group.world_size();
  const ClockOffset clock = clock_offset_blocking(store.with_prefix("clock/"), group.rank(), ranks, group.node_rank());
  RankTimeline own{group.rank(), group.members().host, clock.offset, clock.uncertainty, std::move(records)};
  const std::size_t most = max_timeline_bytes / step_record_bytes / static_cast<std::size_t>(ranks);
  if (group.rank() != 0) {
    const std::string key = std::to_string(group.rank());
    const std::string bytes = serialise(std::move(own), most);
    for (const auto& [name, value] : rendezvous::value_chunks(key, bytes)) {
      store.set(name, value).wait();
    }
    store.set(key, to_bytes(bytes.size())).wait();
  }
  static_cast<void>(group::handle_of(group)->on_rank_0("rank 0", "writing the file " + sanitize(path), [&] {
    std::vector<RankTimeline> all;
    all.push_back(std::move(own));
    for (int rank = 1; rank < ranks; ++rank) {
      const std::string key = std::to_string(rank);
      const auto take = [&store](const std::string& name) { return store.take(name, 1).wait(); };
      const auto size = from_bytes<std::size_t>(take(key), "the size of a timeline");
      const bool is_bounded = size <= 2 * max_timeline_bytes;
      const std::string bytes = is_bounded ? rendezvous::join_value_chunks(key, size, take) : std::string();
      std::optional<RankTimeline> timeline = parse_rank_timeline(rank, bytes);
      if (!timeline) throw_error(Errc::protocol, "the timeline of rank {} cannot be read", {rank});
      all.push_back(*std::move(timeline));
    }
    write_trace(path, all, parameters, WritingAttempt::of(*group::handle_of(group)));
    return true;
  }));
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::write_timeline;
}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <map>
#include <tuple>

#include "dtrain/identity/formats/json.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// A JSON string of printable text.
inline std::string json_string(const std::string& text) {
  return identity::json_string(sanitize(text));
}

/// Writes events, one a line. Begins and ends of spans are paired; a record whose other half the ring has lost is
/// omitted.
class Trace {
 public:
  using Time = StepRecord::Clock::time_point;

  Trace(Time origin, std::uint64_t attempt)
      : origin_(origin), of_attempt_(attempt == 0 ? "" : format_text(", attempt {}", {attempt})) {}

  void add(const RankTimeline& rank, std::span<const std::string> parameters) {
    process_ = rank.rank;
    offset_ = rank.clock_offset;
    open_.clear();
    name("process_name", 0, format_text("rank {} on {}{}", {rank.rank, rank.host, of_attempt_}));
    constexpr const char* rows[] = {"step", "gradient ready", "launched, not started", "reduce"};
    for (int row = 0; row < 4; ++row) {
      name("thread_name", row, rows[row]);
    }
    for (const StepRecord& record : rank.records) {
      add(record, parameters);
    }
  }

  std::string take() noexcept { return std::move(text_); }

 private:
  using Duration = StepRecord::Clock::duration;

  void add(const StepRecord& record, std::span<const std::string> parameters) {
    const std::string bucket = "bucket " + std::to_string(record.index);
    switch (record.event) {
      case StepEvent::begun:
      case StepEvent::launched:
      case StepEvent::waiting: open(record); break;
      case StepEvent::ready:
        line("\"i\",\"s\":\"t\"", 1,  // an instant, which needs a scope
             record.index < parameters.size() ? parameters[record.index] : std::to_string(record.index),
             ",\"ts\":" + microseconds(since_origin(record.time)) + of_step(record.step));
        break;
      case StepEvent::started:
        close(StepEvent::launched, 2, bucket, record);
        open(record);
        break;
      case StepEvent::reduced: close(StepEvent::started, 3, bucket, record); break;
      case StepEvent::finished:
        close(StepEvent::waiting, 0, "waiting", record);
        close(StepEvent::begun, 0, "step " + std::to_string(record.step), record);
        break;
    }
  }

  void open(const StepRecord& record) { open_[{record.event, record.step, record.index}] = record.time; }

  /// Writes the span from the record of `begin` to `record`, if it is open.
  void close(StepEvent begin, int thread, const std::string& name, const StepRecord& record) {
    const auto found = open_.find({begin, record.step, record.index});
    if (found == open_.end()) return;
    line("\"X\"", thread, name,
         ",\"ts\":" + microseconds(since_origin(found->second)) +
             ",\"dur\":" + microseconds(std::max(record.time - found->second, {})) + of_step(record.step));
    open_.erase(found);
  }

  void name(const char* what, int thread, const std::string& value) {
    line("\"M\"", thread, what, ",\"args\":{\"name\":" + json_string(value) + "}");
  }

  void line(const char* phase, int thread, const std::string& name, const std::string& rest) {
    text_ += format_text("{}{\"ph\":{},\"name\":{},\"pid\":{},\"tid\":{}{}}",
                         {text_.empty() ? "\n" : ",\n", phase, json_string(name), process_, thread, rest});
  }

  Duration since_origin(Time time) const { return time + offset_ - origin_; }

  /// "1234.567" for a duration that is not negative. Exact, and with a point in every locale of the program.
  static std::string microseconds(Duration duration) {
    const std::int64_t count = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
    return format_text("{}.{}", {count / 1000, std::to_string(1000 + count % 1000).substr(1)});
  }

  static std::string of_step(std::uint64_t step) { return ",\"args\":{\"step\":" + std::to_string(step) + "}"; }

  Time origin_;
  std::string of_attempt_;
  std::string text_;
  int process_ = 0;
  std::chrono::nanoseconds offset_{};
  std::map<std::tuple<StepEvent, std::uint64_t, std::uint32_t>, Time> open_;  ///< times by event, step and index
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

DTRAIN_DEFINED std::string timeline_json(std::span<const RankTimeline> ranks, std::span<const std::string> parameters,
                                         std::uint64_t attempt) {
  detail::Trace trace(detail::earliest(ranks), attempt);
  std::string clocks;
  for (const RankTimeline& rank : ranks) {
    trace.add(rank, parameters);
    if (rank.clock_uncertainty.count() != 0) {
      clocks += format_text("{}rank {} to within {} us",
                            {clocks.empty() ? "" : ", ", rank.rank, rank.clock_uncertainty.count() / 1000});
    }
  }
  const std::string clock = clocks.empty() ? "one clock" : "rank 0's clock; estimated over the store: " + clocks;
  return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[" + trace.take() +
         "\n],\"otherData\":{\"clock\":" + detail::json_string(clock) + "}}\n";
}

DTRAIN_DEFINED void write_trace(const std::string& path, std::span<const RankTimeline> ranks,
                                std::span<const std::string> parameters, WritingAttempt attempt) {
  const std::string text = timeline_json(ranks, parameters, attempt.number);
  AtomicFile file(path, std::move(attempt));
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

inline void fields(Serializer& of, StepRecord& record) {
  std::chrono::nanoseconds time = record.time.time_since_epoch();
  of.number(record.step);
  of.number(record.index);
  of.choice(record.event, StepEvent::begun, StepEvent::finished);
  fields(of, time);
  record.time = StepRecord::Clock::time_point(time);
}

/// All members but the rank, which the reader knows.
inline void fields(Serializer& of, RankTimeline& timeline) {
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
