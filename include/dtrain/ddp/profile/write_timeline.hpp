#pragma once
/// @file
/// Timeline of a whole job, gathered and written by rank 0.

#include <cstddef>
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
#include "dtrain/ddp/profile/clock_offset.hpp"
#include "dtrain/ddp/profile/rank_timeline.hpp"
#include "dtrain/ddp/profile/step_record.hpp"
#include "dtrain/ddp/profile/timeline.hpp"
#include "dtrain/ddp/rank0_task.hpp"
#include "dtrain/rendezvous/client/value_chunks.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// The timelines of all ranks, in rank 0.
class GatheredTimelines {
 public:
  explicit GatheredTimelines(RankTimeline own);

  /// @param bytes of rank `rank`, which serialise has made @throws Error (protocol) if they are none
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
/// Collective, blocking: as long as rank 0 writes.
/// @param parameters names of the gradients, in the order of parameters(); rank 0's are used
/// @throws Error on every rank, with the same sentence, if the file cannot be written; the job's first cause
template <class Group>
void write_timeline(const Group& group, const std::string& path, std::vector<StepRecord> records,
                    std::span<const std::string> parameters = {}) {
  const auto store = group.store().with_prefix("dtrain/timeline/");
  const int ranks = group.world_size();
  group.start_pending();  // other ranks may wait for this work before they call this
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

#if DTRAIN_DEFINITIONS

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

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::write_timeline;
}  // namespace DTRAIN_NAMESPACE
