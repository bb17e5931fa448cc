#pragma once
/// @file
/// Checkpoints of a job with a ShardedOptimizer: each rank writes its share of the state.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/core/crypto/random.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/checkpoint/checkpoint.hpp"
#include "dtrain/ddp/sharded/shard_files.hpp"
#include "dtrain/ddp/sharded/sharded_optimizer.hpp"
#include "dtrain/group/group_internals.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// Runs `work()` on every rank. If it throws on one, every rank throws that error.
/// Collective, blocking: as long as a rank works. @returns rank 0's text
template <class Group, class Work>
std::string run_on_all_ranks_blocking(const Group& group, const std::string& doing, Work work) {
  const int number = group::GroupAccess::of(group).next_number("shards");
  group.start_pending();  // other ranks may wait for this work before they call this
  const backend::StoreRank self{
      group.store().with_prefix("dtrain/shards/"),
      group.rank(),
      group.world_size(),
      group.members().rank_in_job(),
      Deadline::unbounded("a file system takes its time; a rank that ends fails the job"),
      doing,
      [&group](int rank) { return format_text("rank {}", {group.members().rank_in_job(rank)}); }};
  return backend::store_gather(self, std::to_string(number), work,
                               [](const std::vector<std::string>& texts) { return texts.front(); });
}

inline std::vector<NamedTensor> with_index(std::span<const NamedTensor> tensors, ShardIndex& index) {
  std::vector<NamedTensor> all(tensors.begin(), tensors.end());
  for (NamedTensor& tensor : index.tensors()) {
    all.push_back(std::move(tensor));
  }
  return all;
}

}  // namespace detail

/// As save_checkpoint(group, path, tensors), and every rank writes its share of the optimizer's state to a file beside
/// it, PATH.shard-ID-RANK. The folder is one that all ranks share. `path` names the files, and is replaced when they
/// are all written: at any moment, also after a kill, it has the old state or the new one, whole. Then the files of the
/// old one are removed. No two checkpoints of one folder have names of which one is the other's followed by ".shard-".
/// Collective, blocking: until the files are on the disk. @throws as save_checkpoint, also for a share's file
template <class Group, class R, class C>
void save_checkpoint(const Group& group, const std::string& path, std::span<const NamedTensor> tensors,
                     ShardedOptimizer<R, C>& optimizer) {
  ShardIndex index = ShardIndex::of(optimizer.shares());
  index.files = group.world_size();
  const std::string id = detail::run_on_all_ranks_blocking(group, "naming the files of " + sanitize(path), [] {
    return std::to_string(std::bit_cast<std::int64_t>(random_bytes<8>()));
  });
  index.id = std::stoll(id);
  try {
    detail::run_on_all_ranks_blocking(group, "writing the shard files of " + sanitize(path), [&] {
      write_shard_file(path, index, optimizer.shares(), group.rank());
      return std::string();
    });
    save_checkpoint(group, path, detail::with_index(tensors, index));
  } catch (const JobFailed&) {
    throw;
  } catch (const Error&) {
    if (group.rank() == 0) remove_shard_files(path, index);
    throw;
  }
  if (group.rank() == 0) remove_other_shard_files(path, index);
}

/// As load_checkpoint(group, path, tensors), and every rank reads its share of the optimizer's state, whatever number
/// of ranks saved it and however their buckets were. Call it after the construction of the optimizer.
/// @throws as load_checkpoint; Error (protocol) on every rank if the state is another model's or optimizer's, or a
/// share's file is missing or damaged: then `tensors` are loaded, and the optimizer's state is undefined
template <class Group, class R, class C>
bool load_checkpoint(const Group& group, const std::string& path, std::span<const NamedTensor> tensors,
                     ShardedOptimizer<R, C>& optimizer) {
  const ShardIndex own = ShardIndex::of(optimizer.shares());
  ShardIndex index = own;
  if (!load_checkpoint(group, path, detail::with_index(tensors, index))) {
    return false;
  }
  if (index.model != own.model) {
    throw_error(Errc::protocol,
                "the checkpoint {} has the state of an optimizer with other parameters or another rule; load it into "
                "one as it was saved from",
                {sanitize(path)});
  }
  detail::run_on_all_ranks_blocking(group, "reading the shard files of " + sanitize(path), [&] {
    read_shard_files(path, index, optimizer.shares(), group.rank(), group.world_size());
    return std::string();
  });
  optimizer.shares().set_steps(static_cast<std::uint64_t>(index.steps));
  return true;
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::load_checkpoint;
using ddp::save_checkpoint;
}  // namespace DTRAIN_NAMESPACE
