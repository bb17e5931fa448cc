#pragma once
/// @file
/// group::GroupStateBase: members, store, options and counters of one group, whatever its backend.

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/group/group_options.hpp"
#include "dtrain/group/rank_context.hpp"
#include "dtrain/rendezvous/client/store.hpp"
#include "dtrain/rendezvous/control/task_runner.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

namespace DTRAIN_NAMESPACE::group {

/// The part of a GroupState that is compiled once. Threads: as GroupState.
class GroupStateBase : public RankContext::Closable {
 public:
  GroupStateBase(const GroupStateBase&) = delete;
  GroupStateBase& operator=(const GroupStateBase&) = delete;

  const std::shared_ptr<RankContext>& rank_context() const noexcept { return rank_context_; }
  const rendezvous::Membership& members() const noexcept { return members_; }
  bool has_all_ranks() const noexcept { return prefix_.empty(); }

  /// Starts enqueued work of this rank's streams that no thread runs. Blocking: no.
  void start_pending() const noexcept { rank_context_->streams->run_unattended(); }

  /// The job's store, with the group's prefix before every key and barriers of the group's ranks.
  rendezvous::Store store() const;

  /// Counts 1, 2, ... for each purpose.
  int next_number(const std::string& purpose);

  rendezvous::TaskRunner& tasks;  ///< the rank's; for OffThreadDeleter

 protected:
  GroupStateBase(std::shared_ptr<RankContext> rank_context, rendezvous::Membership members, std::string prefix,
                 const GroupOptions& options);
  ~GroupStateBase() = default;

  /// Whether an exception unwinds that was not when the group was made.
  bool unwinds() const noexcept { return std::uncaught_exceptions() > exceptions_; }

  /// For opening a channel right away.
  backend::ChannelContext channel_context(const std::string& purpose, Accumulate accumulate,
                                          const backend::DescribeOperation& describe = {}) const;

  /// The same, for a further channel of the group. @param accumulate f32: even if the group's is not
  backend::ChannelContext next_channel_context(const std::string& purpose, Accumulate accumulate,
                                               const backend::DescribeOperation& describe,
                                               backend::AlgorithmPreference algorithms);

  /// Prefix of the group that the next split with this color makes.
  std::string next_split_prefix(int color);

  /// Reports to the job an error of this rank, for which the other ranks would wait. Blocking: 2 s at most.
  /// @throws the job's first cause
  void report_error(const Error& error) const;

  const std::shared_ptr<RankContext> rank_context_;
  const rendezvous::Membership members_;
  const GroupOptions options_;

 private:
  const std::string prefix_;  ///< of keys and channel names; empty for the group of all ranks
  const std::shared_ptr<const rendezvous::RankSet> barrier_ranks_;  ///< of the barriers of a subgroup
  std::atomic<int> channels_opened_{0};
  int splits_ = 0;
  std::mutex numbers_mutex_;
  std::vector<std::pair<std::string, int>> numbers_;  ///< of each purpose, the last
  const int exceptions_ = std::uncaught_exceptions();
};

}  // namespace DTRAIN_NAMESPACE::group

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <chrono>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::group {

DTRAIN_DEFINED GroupStateBase::GroupStateBase(std::shared_ptr<RankContext> rank_context, rendezvous::Membership members,
                                              std::string prefix, const GroupOptions& options)
    : tasks(rank_context->tasks),
      rank_context_(std::move(rank_context)),
      members_(std::move(members)),
      options_(options),
      prefix_(std::move(prefix)),
      barrier_ranks_(has_all_ranks() ? nullptr
                                     : std::make_shared<const rendezvous::RankSet>(
                                           rendezvous::RankSet::of(members_.ranks_in_job()))) {}

DTRAIN_DEFINED rendezvous::Store GroupStateBase::store() const {
  rendezvous::Store store = rank_context_->control_plane.store().with_timeout(rank_context_->timeout);
  return has_all_ranks() ? store : store.with_prefix(prefix_).with_barrier_ranks(barrier_ranks_);
}

DTRAIN_DEFINED int GroupStateBase::next_number(const std::string& purpose) {
  const std::lock_guard lock(numbers_mutex_);
  auto found = std::find_if(numbers_.begin(), numbers_.end(), [&](const auto& one) { return one.first == purpose; });
  if (found == numbers_.end()) {
    found = numbers_.insert(found, {purpose, 0});
  }
  return ++found->second;
}

DTRAIN_DEFINED backend::ChannelContext GroupStateBase::channel_context(
    const std::string& purpose, Accumulate accumulate, const backend::DescribeOperation& describe) const {
  const std::string name = prefix_ + purpose;
  start_pending();  // other ranks may wait for this work before they open theirs
  backend::ChannelContext context{members_,
                                  name,
                                  rank_context_->control_plane.store().with_prefix(name + "/"),
                                  rank_context_->control_plane.failure(),
                                  rank_context_->timeout,
                                  [streams = rank_context_->streams] { streams->run_unattended(); },
                                  describe,
                                  accumulate};
  context.algorithms = options_.algorithms;
  return context;
}

DTRAIN_DEFINED backend::ChannelContext GroupStateBase::next_channel_context(const std::string& purpose,
                                                                            Accumulate accumulate,
                                                                            const backend::DescribeOperation& describe,
                                                                            backend::AlgorithmPreference algorithms) {
  backend::ChannelContext context = channel_context(format_text("{}-{}", {purpose, channels_opened_.fetch_add(1)}),
                                                    std::max(accumulate, options_.accumulate), describe);
  if (algorithms == backend::AlgorithmPreference::reproducible) {
    context.algorithms = context.algorithms.reproducible();
  } else if (algorithms == backend::AlgorithmPreference::measured) {
    context.algorithms = context.algorithms.or_measured();
  }
  return context;
}

DTRAIN_DEFINED std::string GroupStateBase::next_split_prefix(int color) {
  return format_text("{}split-{}-{}/", {prefix_, splits_++, color});
}

DTRAIN_DEFINED void GroupStateBase::report_error(const Error& error) const {
  const std::shared_ptr<FailureLatch>& failure = rank_context_->control_plane.failure();
  const int self = members_.rank_in_job();
  failure->report({CauseKind::exception, self, members_.host, error.what()});
  failure->block_until_failed(Deadline::after(std::chrono::seconds(2)));
  failure->throw_if_failed(self);
}

}  // namespace DTRAIN_NAMESPACE::group

#endif  // DTRAIN_DEFINITIONS
