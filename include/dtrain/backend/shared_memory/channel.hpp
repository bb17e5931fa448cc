#pragma once
/// @file
/// One rank's side of a channel: meeting the others, and giving up when it fails.

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/shared_memory/control_block.hpp"
#include "dtrain/backend/shared_memory/doorbell.hpp"
#include "dtrain/backend/shared_memory/segment.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/futex.hpp"
#include "dtrain/rendezvous/rank_list.hpp"
#include "dtrain/stream/host/progress.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A meeting: every rank counts up its own `arrived` word and waits for everybody else's. What a rank wrote before it
/// arrived, others may read after they met it; what it writes after meeting k+1 nobody reads for meeting k any more.
///
/// Owned by the Communicator and by each enqueued operation (retain, release). Threads: run, and what its work
/// calls, belong to the thread that runs the stream; abort, failure and close to any.
class Channel {
 public:
  Channel(const ChannelContext& context, std::shared_ptr<Segment> segment)
      : rank_(context.members.rank),
        size_(context.members.world_size),
        name_(context.name),
        host_(context.members.host),
        timeout_(std::min<std::chrono::nanoseconds>(context.timeout, std::chrono::hours(24 * 365))),
        failure_(context.failure),
        segment_(std::move(segment)),
        control_(segment_->base(), size_),
        spins_(stream::host::cores_by_affinity() >= size_ ? 200 : 50) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const std::string& name() const noexcept { return name_; }
  const std::string& host() const noexcept { return host_; }
  const std::shared_ptr<FailureLatch>& latch() const noexcept { return failure_; }
  const ControlBlock& control() const noexcept { return control_; }

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete this;
    }
  }

  /// Runs `work` as the operation that was enqueued as the `operation.sequence`-th; skips it once the channel has
  /// failed. What this rank says about it becomes visible with its next arrival.
  template <class F>
  void run(const Operation& operation, F work) noexcept {
    if (in_operation_.exchange(1) != 0) {
      fail(out_of_order(operation));
      return;
    }
    if (done_.load() + 1 != operation.sequence && !aborted()) {
      fail(out_of_order(operation));
    } else if (!aborted()) {
      operation_ = operation;
      deadline_.reset();
      own_slot().operations[operation.sequence % 2] = operation;
      work();
    }
    done_.store(std::max(done_.load(), operation.sequence));
    in_operation_.store(0);
    if (closing_.load()) {
      futex_wake_all(in_operation_, FutexScope::process);
    }
  }

  /// Arrives, and waits for all. @returns false where the channel has failed meanwhile.
  bool meet() noexcept {
    arrive(own_slot(), ++meetings_);
    return wait_for_all();
  }

  /// The first meeting of an operation: also compares what everybody calls.
  bool meet_and_compare() noexcept { return meet() && all_agree(); }

  /// What rank `rank` says about the present operation; valid from the operation's first meeting to its end.
  const Operation& operation_of(int rank) const noexcept {
    return control_.slot(rank).operations[operation_.sequence % 2];
  }

  std::byte* small_of(int rank) const noexcept { return control_.slot(rank).small[operation_.sequence % 2].data(); }

  /// Whether work is to stop now. Looked at between pieces of work that take microseconds.
  bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }

  std::optional<Cause> failure() const {
    if (!aborted()) {
      return std::nullopt;
    }
    const std::lock_guard lock(mutex_);
    return cause_;
  }

  /// Ends running and later work of this rank, and tells the peers' channels why. The first cause stays.
  void abort(const Cause& cause) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (cause_) {
        return;
      }
      cause_ = copy_of(cause);
      own_slot().cause.store(cause);
      aborted_.store(true);  // before anybody else can find a cause and return
    }
    leave(own_slot(), SlotState::failed);
    sleeper_.wake();
  }

  /// Aborts, and tells the job. In the thread that runs the work.
  void fail(const Cause& cause) noexcept {
    abort(cause);
    try {
      failure_->report(cause);
    } catch (...) {
      // failure() has it; the job learns of it from whoever looks there.
    }
  }

  /// The communicator is going away: no work runs after this, and peers that still wait for this rank are told.
  /// Blocking: until the operation that runs in another thread has ended, which is soon.
  void close(std::uint64_t enqueued) noexcept {
    if (done_.load() < enqueued) {
      abort({CauseKind::exception, rank_, host_, "its communicator was destroyed before all of its work had run"});
    }
    closing_.store(true);
    while (in_operation_.load() != 0) {
      futex_wait(in_operation_, 1, Deadline::after(std::chrono::seconds(1)), FutexScope::process);
    }
    if (!aborted()) {
      leave(own_slot(), SlotState::closed);
    }
  }

 private:
  ~Channel() = default;

  static constexpr int yields = 50;

  Slot& own_slot() const noexcept { return control_.slot(rank_); }

  static std::optional<Cause> copy_of(const Cause& cause) noexcept {
    try {
      return cause;
    } catch (...) {
      return Cause{cause.kind, cause.rank, {}, {}};  // no memory for its text
    }
  }

  bool wait_for_all() noexcept {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_ && !wait_for(peer)) {
        return false;
      }
    }
    return !aborted();
  }

  bool wait_for(int peer) noexcept {
    Slot& slot = control_.slot(peer);
    // First in the hope that it runs on another core, then in case it waits for this one, at last without a core.
    for (int spin = 0; spin < spins_ + yields; ++spin) {
      if (has_arrived(slot, meetings_)) {
        return true;
      }
      if (aborted()) {
        return false;
      }
      if (spin < spins_) {
        spin_pause();
      } else {
        static_cast<void>(::sched_yield());
      }
    }
    if (!deadline_) {
      deadline_ = Deadline::after(timeout_);
    }
    while (!aborted()) {
      sleeper_.sleep(slot, meetings_, aborted_, *deadline_);
      if (has_arrived(slot, meetings_)) {
        return true;
      }
      if (!any_has_left() && deadline_->passed()) {
        fail({CauseKind::timeout, rank_, host_, present() + ": " + missing()});
      }
    }
    return false;
  }

  /// Whether this meeting cannot take place because a peer failed or left; then this channel fails too. All are looked
  /// at: the one that is waited for may itself wait for such a peer. Who came first and then left spoils nothing.
  bool any_has_left() noexcept {
    for (int peer = 0; peer < size_; ++peer) {
      const Slot& slot = control_.slot(peer);
      const SlotState state = slot.state.load();
      if (state == SlotState::failed && !all_have_arrived()) {
        fail(slot.cause.load());
        return true;
      }
      if (state == SlotState::closed && !has_arrived(slot, meetings_)) {
        fail({CauseKind::disagreement, -1, "",
              present() + " cannot be finished: rank " + std::to_string(peer) +
                  " has left the channel without calling it"});
        return true;
      }
    }
    return false;
  }

  bool all_have_arrived() const noexcept {
    for (int peer = 0; peer < size_; ++peer) {
      if (!has_arrived(control_.slot(peer), meetings_)) {
        return false;
      }
    }
    return true;
  }

  /// Every rank compares everybody with rank 0, so that every rank says the same sentence.
  bool all_agree() noexcept {
    const Operation& first = operation_of(0);
    for (int peer = 1; peer < size_; ++peer) {
      const Operation& other = operation_of(peer);
      if (!other.agrees_with(first)) {
        fail({CauseKind::disagreement, -1, "",
              "as " + place_of(first, name_) + ", rank 0 called " + to_string(first) + " and rank " +
                  std::to_string(peer) + " called " + to_string(other) +
                  "; every rank calls the same collectives in the same order"});
        return false;
      }
    }
    return true;
  }

  Cause out_of_order(const Operation& operation) const {
    return {
        CauseKind::exception, rank_, host_,
        to_string(operation) + ", " + place_of(operation, name_) +
            ", began before the one enqueued before it had run; operations of one communicator go to one stream, or "
            "to streams that wait for each other"};
  }

  std::string present() const { return to_string(operation_) + ", " + place_of(operation_, name_); }

  /// Who has come to this meeting, who has not, and how long that has been so.
  std::string missing() const {
    std::vector<int> here;
    std::vector<int> not_here;
    for (int peer = 0; peer < size_; ++peer) {
      (has_arrived(control_.slot(peer), meetings_) ? here : not_here).push_back(peer);
    }
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(timeout_).count();
    return rendezvous::rank_list(not_here) + " had not arrived after " + std::to_string(milliseconds) + " ms; " +
           rendezvous::rank_list(here) + " had";
  }

  const int rank_;
  const int size_;
  const std::string name_;
  const std::string host_;
  const std::chrono::nanoseconds timeout_;
  const std::shared_ptr<FailureLatch> failure_;
  const std::shared_ptr<Segment> segment_;
  const ControlBlock control_;
  const int spins_;  ///< short where ranks outnumber cores: whoever is waited for needs the core

  std::atomic<std::int64_t> references_{1};
  std::uint32_t meetings_ = 0;
  Operation operation_;
  std::optional<Deadline> deadline_;  ///< of the present operation; the clock is read when it first has to sleep
  std::atomic<std::uint64_t> done_{0};
  std::atomic<std::uint32_t> in_operation_{0};
  std::atomic<bool> closing_{false};
  Sleeper sleeper_;
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  std::optional<Cause> cause_;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
