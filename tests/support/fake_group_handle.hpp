#pragma once
/// @file
/// What ddp/ needs of a group, of one rank of a fake job.

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/group/group_handle.hpp"
#include "support/fake_store.hpp"

namespace support {

/// Its rank of the group is its rank of the job, unless `members.job_ranks` says otherwise.
class FakeGroupHandle final : public dtrain::group::GroupHandle {
 public:
  FakeGroupHandle(std::shared_ptr<FakeJob> job, dtrain::rendezvous::Membership members,
                  std::chrono::nanoseconds timeout = std::chrono::seconds(20))
      : job_(std::move(job)), members_(std::move(members)), timeout_(timeout) {}

  /// A rank on "host-<rank>".
  static std::shared_ptr<FakeGroupHandle> of(const std::shared_ptr<FakeJob>& job, int rank, int world_size) {
    dtrain::rendezvous::Membership members;
    members.rank = rank;
    members.world_size = world_size;
    members.host = "host-" + std::to_string(rank);
    return std::make_shared<FakeGroupHandle>(job, std::move(members));
  }

  const std::shared_ptr<FakeJob>& job() const noexcept { return job_; }
  FakeStore store() const { return {job_, members_.rank}; }

  const dtrain::rendezvous::Membership& members() const noexcept override { return members_; }
  std::chrono::nanoseconds timeout() const noexcept override { return timeout_; }
  const std::shared_ptr<dtrain::FailureLatch>& failure() const noexcept override { return job_->latch(members_.rank); }
  void report_abandoned_step(bool unwinding) const noexcept override { abandoned.push_back(unwinding); }
  dtrain::backend::StoreRef store_ref() const override { return store(); }
  void barrier_blocking(const std::string& name, const std::string&, dtrain::Deadline deadline) const override {
    store().barrier(name, deadline).wait();
  }
  int next_number(const std::string& purpose) const override { return ++numbers_[purpose]; }
  void require_may_block() const noexcept override {}
  /// They are set when this returns.
  dtrain::group::WaitUntilSet set_in_background(dtrain::group::StoreEntries entries) const override {
    for (const auto& [key, value] : entries)
      store().set(key, value).wait();
    return [](dtrain::Deadline) {};
  }

  mutable std::vector<bool> abandoned;  ///< whether an exception unwound, of each such step

 private:
  std::shared_ptr<FakeJob> job_;
  dtrain::rendezvous::Membership members_;
  std::chrono::nanoseconds timeout_;
  mutable std::map<std::string, int> numbers_;
};

}  // namespace support
