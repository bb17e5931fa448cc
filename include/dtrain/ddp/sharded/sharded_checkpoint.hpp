#pragma once
/// @file
/// Checkpoints of a job with a ShardedOptimizer: each rank writes its share; the old or the new state is whole at any
/// moment.

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/crypto.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/checkpoint/atomic_file.hpp"
#include "dtrain/ddp/checkpoint/checkpoint.hpp"
#include "dtrain/ddp/sharded/shard_files.hpp"
#include "dtrain/ddp/sharded/sharded_optimizer.hpp"
#include "dtrain/group/group_internals.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// Runs `work()` on every rank. Collective, blocking: until work() has ended on all ranks, without a time limit while
/// all are alive.
/// @returns for backend::detail::decode: rank 0's text, or an error, which names rank and host, if work() threw on a
/// rank or a rank is doing something else
std::string result_of_all_ranks_blocking(const group::GroupHandle& group, const std::string& doing,
                                         const std::function<std::string()>& work);

/// Runs `work()` on every rank, as result_of_all_ranks_blocking. @returns rank 0's text @throws on every rank, the
/// error of one rank
std::string run_on_all_ranks_blocking(const group::GroupHandle& group, const std::string& doing,
                                      const std::function<std::string()>& work);

std::vector<NamedTensor> with_index(std::span<const NamedTensor> tensors, ShardIndex& index);

/// One checkpoint with shard files. Each rank writes one shard file. Rank 0 also writes the file that names the shard
/// files, and commits it when they are written. Not movable. Threads: write() runs on one thread; all other calls come
/// before or after write().
class ShardedSave {
 public:
  /// @param tensors of rank 0; ignored on others @param access to the tensors and to the state
  ShardedSave(const std::string& path, const ShardIndex& index, std::span<const NamedTensor> tensors, Shards& shares,
              int rank, std::unique_ptr<TensorAccess> access, WritingAttempt attempt);
  ShardedSave(ShardedSave&&) = delete;
  ShardedSave& operator=(ShardedSave&&) = delete;

  /// Removes this rank's file, unless the checkpoint may be whole.
  ~ShardedSave();

  /// Copies the tensors and the state, so that write() writes the present values. Blocking: the copies.
  void copy();

  /// Blocking: the file system. @throws as write_checkpoint_file
  void write();

  /// Collective, blocking. @param require_written throws unless write() has ended well on this rank
  template <class Group>
  void finish(const Group& group, const std::function<void()>& require_written) {
    const std::string result =
        result_of_all_ranks_blocking(*group::handle_of(group), "writing the shard files of " + sanitize(call_), [&] {
          require_written();
          may_be_whole_ = true;  // rank 0 may have named this file from here on, even if the job then fails
          return std::string();
        });
    may_be_whole_ = result == "=";
    static_cast<void>(backend::detail::decode(result));
    static_cast<void>(group::handle_of(group)->on_rank_0("rank 0", "writing the file " + sanitize(call_), [&] {
      commit();
      return true;
    }));
  }

 private:
  void commit();

  std::string path_;
  std::vector<std::string> former_;  ///< rank 0's list of the shard files that commit() removes
  std::string call_;                 ///< the path as given, and the id of this call
  ShardIndex index_;
  std::vector<NamedTensor> tensors_;
  ShardContent state_;
  std::array<TensorSnapshot, 2> copies_;
  std::optional<AtomicFile> file_;
  std::unique_ptr<TensorAccess> access_;
  WritingAttempt attempt_;
  int rank_;
  bool may_be_whole_ = false;
};

template <class Group>
std::unique_ptr<TensorAccess> access_of(const Group& group) {
  return std::make_unique<decltype(tensor_access(group))>(tensor_access(group));
}

/// Collective, blocking: the ranks agree on the files' names.
template <class Group, class R, class C>
std::shared_ptr<ShardedSave> sharded_save(const Group& group, const std::string& path,
                                          std::span<const NamedTensor> tensors, ShardedOptimizer<R, C>& optimizer) {
  optimizer.wait();
  ShardIndex index = ShardIndex::of(optimizer.shares());
  index.files = group.world_size();
  index.id =
      std::stoll(run_on_all_ranks_blocking(*group::handle_of(group), "naming the files of " + sanitize(path), [] {
        return std::to_string(std::bit_cast<std::int64_t>(random_bytes<sizeof(std::int64_t)>()));
      }));
  return std::make_shared<ShardedSave>(path, index, tensors, optimizer.shares(), group.rank(), access_of(group),
                                       WritingAttempt::of(*group::handle_of(group)));
}

}  // namespace detail

/// Saves the tensors, as save_checkpoint(group, path, tensors), and the optimizer's state. Every rank writes its share
/// of the state to a shard file, PATH.shard-ID-RANK, in a folder that all ranks share. The file `path` names the shard
/// files, and is replaced when all of these are written. At any moment, also after a kill, `path` has the whole old
/// state or the whole new state. After the replacement the call removes the shard files that existed when it began: all
/// names PATH.shard-ID-RANK with an ID of 16 hexadecimal digits, also unfinished ones (.part). One job at a time saves
/// to `path`. Collective, blocking: until the files are on the disk. @throws as save_checkpoint, also for a share's
/// file
/// @ingroup checkpoints
template <class Group, class R, class C>
void save_checkpoint(const Group& group, const std::string& path, std::span<const NamedTensor> tensors,
                     ShardedOptimizer<R, C>& optimizer) {
  detail::barrier_of_save(group, path);
  const std::shared_ptr<detail::ShardedSave> save = detail::sharded_save(group, path, tensors, optimizer);
  save->finish(group, [&] { save->write(); });
}

/// Saves the same files in the background, and returns when every rank has copied its data; see
/// save_checkpoint_async(group, path, tensors). Collective, blocking: the copies, and a message of rank 0.
/// @ingroup checkpoints
template <class Group, class R, class C>
[[nodiscard]] PendingCheckpoint save_checkpoint_async(const Group& group, const std::string& path,
                                                      std::span<const NamedTensor> tensors,
                                                      ShardedOptimizer<R, C>& optimizer) {
  group.check();
  const std::shared_ptr<detail::ShardedSave> save = detail::sharded_save(group, path, tensors, optimizer);
  return PendingCheckpoint(
      detail::copied_then([&] { save->copy(); }, [save] { save->write(); }),
      [save, group](const std::function<void()>& require_written) { save->finish(group, require_written); },
      detail::detach_thread(group));
}

/// Loads the tensors, as load_checkpoint(group, path, tensors), and the optimizer's state. Every rank reads its share
/// of the state, which any number of ranks, with any buckets, may have saved. Call it after the construction of the
/// optimizer. Another job may save to `path` meanwhile: the call then loads one of its checkpoints.
/// @throws as load_checkpoint; Error (protocol) on every rank if the state is another model's or optimizer's, or a
/// shard file is missing or damaged; `tensors` are loaded after such an error, and the optimizer's state is undefined
/// @ingroup checkpoints
template <class Group, class R, class C>
bool load_checkpoint(const Group& group, const std::string& path, std::span<const NamedTensor> tensors,
                     ShardedOptimizer<R, C>& optimizer) {
  optimizer.wait();
  const ShardIndex own = ShardIndex::of(optimizer.shares());
  std::int64_t steps = 0;
  const auto load = [&](ShardIndex& index) {
    index = own;
    if (!load_checkpoint(group, path, detail::with_index(tensors, index))) {
      return false;
    }
    if (index.model != own.model) {
      throw_error(Errc::protocol,
                  "the checkpoint {} has the state of an optimizer with other parameters or another rule; load it into "
                  "one as it was saved from",
                  {sanitize(path)});
    }
    if (index.steps < 0 || index.files < 1) {
      throw_error(Errc::protocol,
                  "the checkpoint {} says that {} shard files have the state after {} steps; load another",
                  {sanitize(path), index.files, index.steps});
    }
    detail::run_on_all_ranks_blocking(*group::handle_of(group), "reading the shard files of " + sanitize(path), [&] {
      read_shard_files(detail::behind_link(path), index, optimizer.shares(), group.rank(), group.world_size(),
                       tensor_access(group));
      return std::string();
    });
    steps = index.steps;
    return true;
  };
  if (!detail::load_past_replacement(load)) {
    return false;
  }
  optimizer.shares().loaded(static_cast<std::uint64_t>(steps));
  group::GroupAccess::of(group).rank_context()->sharded.has_loaded = true;
  return true;
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::load_checkpoint;
using ddp::save_checkpoint;
using ddp::save_checkpoint_async;
}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::ddp::detail {

DTRAIN_DEFINED std::string result_of_all_ranks_blocking(const group::GroupHandle& group, const std::string& doing,
                                                        const std::function<std::string()>& work) {
  const rendezvous::Membership& members = group.members();
  const int rank = members.rank_in_job();
  const auto work_here = [&]() -> std::string {
    try {
      return backend::detail::with_error(doing, work);
    } catch (const JobFailed&) {
      throw;
    } catch (const Error& error) {
      if (members.world_size == 1) throw;
      throw Error(error.code(), format_text("{} (on rank {} on host {})", {error.what(), rank, members.host}));
    }
  };
  const auto own = [&] {
    return format_text("{}\n{}", {doing, backend::detail::encoded_result(doing, work_here, rank)});
  };
  const auto combine = [&](const std::vector<std::string>& texts) {
    std::vector<std::string> all;
    std::vector<std::string> results;
    for (const std::string& text : texts) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      all.push_back(text.substr(0, end));
      results.push_back(text.substr(std::min(end + 1, text.size())));
    }
    if (const std::optional<Error> difference = group::different_work(members, all)) {
      return backend::detail::encode(*difference, rank);
    }
    const auto failed = std::find_if(results.begin(), results.end(), [](const auto& one) { return one[0] != '='; });
    return failed == results.end() ? results.front() : *failed;
  };
  const Deadline none = Deadline::unbounded("a file system takes its time; a rank that ends fails the job");
  return group.gather("shards", doing, own, combine, {none, std::chrono::milliseconds(0)});
}

DTRAIN_DEFINED std::string run_on_all_ranks_blocking(const group::GroupHandle& group, const std::string& doing,
                                                     const std::function<std::string()>& work) {
  return backend::detail::decode(result_of_all_ranks_blocking(group, doing, work));
}

DTRAIN_DEFINED std::vector<NamedTensor> with_index(std::span<const NamedTensor> tensors, ShardIndex& index) {
  std::vector<NamedTensor> all(tensors.begin(), tensors.end());
  for (NamedTensor& tensor : index.tensors()) {
    all.push_back(std::move(tensor));
  }
  return all;
}

DTRAIN_DEFINED ShardedSave::ShardedSave(const std::string& path, const ShardIndex& index,
                                        std::span<const NamedTensor> tensors, Shards& shares, int rank,
                                        std::unique_ptr<TensorAccess> access, WritingAttempt attempt)
    : path_(behind_link(path)),
      former_(rank == 0 ? other_shard_files(path_, index) : std::vector<std::string>()),
      call_(format_text("{} with id {}", {path, index.id})),
      index_(index),
      tensors_(rank == 0 ? with_index(tensors, index_) : std::vector<NamedTensor>()),
      state_(shard_content(shares, rank, static_cast<int>(index.files))),
      access_(std::move(access)),
      attempt_(std::move(attempt)),
      rank_(rank) {}

DTRAIN_DEFINED ShardedSave::~ShardedSave() {
  if (!may_be_whole_) remove_shard_files(path_, index_, rank_);
}

DTRAIN_DEFINED void ShardedSave::copy() {
  copies_ = {TensorSnapshot(tensors_, std::move(*access_)), TensorSnapshot(state_.tensors, std::move(*access_))};
  tensors_ = copies_[0].tensors();
  state_.tensors = copies_[1].tensors();
}

DTRAIN_DEFINED void ShardedSave::write() {
  write_checkpoint_file(index_.file_name(path_, rank_), state_.tensors, std::move(*access_), attempt_, state_.sharding);
  if (rank_ == 0) {
    file_.emplace(path_, attempt_);
    write_checkpoint(*file_, tensors_, std::move(*access_));
    file_->sync();
  }
}

DTRAIN_DEFINED void ShardedSave::commit() {
  try {
    file_->commit();
  } catch (...) {
    if (!file_->has_name()) remove_shard_files(path_, index_);
    throw;
  }
  remove_files(former_);
}

}  // namespace DTRAIN_NAMESPACE::ddp::detail

#endif  // DTRAIN_DEFINITIONS
