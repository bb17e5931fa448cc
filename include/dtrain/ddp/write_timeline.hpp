#pragma once
/// @file
/// The timeline of a whole job, gathered and written by rank 0.

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/core/printable.hpp"
#include "dtrain/ddp/atomic_file.hpp"
#include "dtrain/ddp/clock_offset.hpp"
#include "dtrain/ddp/rank_0_work.hpp"
#include "dtrain/ddp/step_record.hpp"
#include "dtrain/ddp/step_record_bytes.hpp"
#include "dtrain/ddp/timeline.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

inline constexpr std::size_t timeline_piece_bytes = std::size_t{512} << 10;  // a value of the store has its bounds

/// Sets `key/0`, `key/1`, ..., and their number under `key`.
template <class Store>
void put_pieces_blocking(const Store& store, const std::string& key, const std::string& text) {
  std::size_t pieces = 0;
  for (std::size_t at = 0; at < text.size(); at += timeline_piece_bytes) {
    store.set(key + "/" + std::to_string(pieces++), text.substr(at, timeline_piece_bytes)).wait();
  }
  store.set(key, std::to_string(pieces)).wait();
}

/// What put_pieces_blocking set, which is gone from the store afterwards.
template <class Store>
std::string take_pieces_blocking(const Store& store, const std::string& key) {
  constexpr std::size_t most = max_timeline_bytes / timeline_piece_bytes + 1;
  const std::string told = store.take(key, 1).wait();
  const std::size_t pieces = std::min<std::size_t>(std::strtoull(told.c_str(), nullptr, 10), most);
  std::string text;
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const std::string name = key + "/" + std::to_string(piece);
    text += store.take(name, 1).wait();
  }
  return text;
}

}  // namespace detail

/// Rank 0 writes the records of all ranks (DistributedDataParallel::records) to `path` as a trace that Perfetto and
/// chrome://tracing open, on rank 0's clock. Ranks on other hosts have their offset estimated now, and the trace says
/// to within what. Beyond max_timeline_bytes each rank's latest records count. Collective, blocking: as long as rank 0
/// writes.
/// @param parameters names for the gradients, in the order of parameters(); rank 0's count
/// @throws Error on every rank, with the same sentence, where the file cannot be written; the job's first cause
template <class Group>
void write_timeline(const Group& group, const std::string& path, std::vector<StepRecord> records,
                    std::span<const std::string> parameters = {}) {
  const auto store = group.store().with_prefix("dtrain/timeline/");
  const int ranks = group.world_size();
  group.run_enqueued();  // other ranks may wait for it before they come here
  const ClockOffset clock = clock_offset_blocking(store.with_prefix("clock/"), group.rank(), ranks, group.node_rank());
  RankTimeline own{group.rank(), group.members().host, clock.offset, clock.uncertainty, std::move(records)};
  const std::size_t most = max_timeline_bytes / step_record_bytes / static_cast<std::size_t>(ranks);
  if (group.rank() != 0) {
    detail::put_pieces_blocking(store, std::to_string(group.rank()), serialise(own, most));
  }
  static_cast<void>(detail::on_rank_0_blocking(group, "writing the file " + printable(path), [&] {
    std::vector<RankTimeline> all;
    all.push_back(std::move(own));
    for (int rank = 1; rank < ranks; ++rank) {
      std::optional<RankTimeline> part =
          parse_rank_timeline(rank, detail::take_pieces_blocking(store, std::to_string(rank)));
      if (!part) throw Error(Errc::protocol, "the timeline of rank " + std::to_string(rank) + " cannot be read");
      all.push_back(*std::move(part));
    }
    const std::string text = timeline_json(all, parameters);
    AtomicFile file(path);
    file.write(std::as_bytes(std::span(text)));
    file.commit();
    return true;
  }));
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::write_timeline;
}  // namespace DTRAIN_NAMESPACE
