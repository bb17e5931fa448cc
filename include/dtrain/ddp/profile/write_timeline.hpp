#pragma once
/// @file
/// Timeline of a whole job, gathered and written by rank 0; clock offset: rank 0's clock minus this rank's, estimated
/// over the store.

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
#include "dtrain/ddp/profile/timeline.hpp"
#include "dtrain/ddp/rank0_task.hpp"
#include "dtrain/rendezvous/client/value_chunks.hpp"

namespace DTRAIN_NAMESPACE::ddp {

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

namespace detail {

/// The timelines of all ranks, in rank 0.
class GatheredTimelines {
 public:
  explicit GatheredTimelines(RankTimeline own);

  /// @param bytes of rank `rank`, by serialise @throws Error (protocol) for any other bytes
  void add(int rank, std::string_view bytes);

  /// Blocking: the file system. @throws as AtomicFile
  void write(const std::string& path, std::span<const std::string> parameters) const;

 private:
  std::vector<RankTimeline> all_;
};

}  // namespace detail

/// Rank 0 writes the records of all ranks (DistributedDataParallel::records) to `path` as a trace for Perfetto and
/// chrome://tracing, on rank 0's clock. The clock offsets of ranks on other hosts are estimated now; the trace contains
/// their uncertainty. Beyond max_timeline_bytes each rank's latest records are kept.
/// Collective, blocking: until rank 0 has written the file.
/// @param parameters names of the gradients, in the order of parameters(); rank 0's are used
/// @throws Error on every rank, with the same sentence, if the file cannot be written; the job's first cause
/// @ingroup times
template <class Group>
void write_timeline(const Group& group, const std::string& path, std::vector<StepRecord> records,
                    std::span<const std::string> parameters = {}) {
  const auto store = group.store().with_prefix("dtrain/timeline/");
  const int ranks = group.world_size();
  group.start_pending();  // other ranks may wait for this work before they make this call
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
  static_cast<void>(detail::run_on_rank0_blocking(group, "writing the file " + sanitize(path), [&] {
    detail::GatheredTimelines all(std::move(own));
    for (int rank = 1; rank < ranks; ++rank) {
      const std::string key = std::to_string(rank);
      const auto take = [&store](const std::string& name) { return store.take(name, 1).wait(); };
      const auto size = from_bytes<std::size_t>(take(key), "the size of a timeline");
      all.add(rank, size <= 2 * max_timeline_bytes ? rendezvous::join_value_chunks(key, size, take) : std::string());
    }
    all.write(path, parameters);
    return true;
  }));
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::write_timeline;
}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

DTRAIN_DEFINED GatheredTimelines::GatheredTimelines(RankTimeline own) {
  all_.push_back(std::move(own));
}

DTRAIN_DEFINED void GatheredTimelines::add(int rank, std::string_view bytes) {
  std::optional<RankTimeline> timeline = parse_rank_timeline(rank, bytes);
  if (!timeline) throw_error(Errc::protocol, "the timeline of rank {} cannot be read", {rank});
  all_.push_back(*std::move(timeline));
}

DTRAIN_DEFINED void GatheredTimelines::write(const std::string& path, std::span<const std::string> parameters) const {
  const std::string text = timeline_json(all_, parameters);
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace detail

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
