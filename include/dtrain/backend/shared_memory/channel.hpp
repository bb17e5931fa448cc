#pragma once
/// @file
/// shared_memory::Channel of a Communicator: one rank's operations in order, barriers, timeouts and failure.
/// PeerPace: when its waits sleep.

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/failure/wait_notice.hpp"
#include "dtrain/backend/ordered_channel.hpp"
#include "dtrain/backend/shared_memory/control_block.hpp"
#include "dtrain/backend/shared_memory/segment.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/futex.hpp"
#include "dtrain/core/process/core_count.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/wait_pace.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/instruction_sets/isa.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Paces the waits for peers of one channel: a WaitPace for each wait, and sleeps that part two ranks on one core.
///
/// The scheduler may leave two ranks on one core while another is idle. Both look busy, so the scheduler moves neither,
/// and every barrier costs a thread switch. A thread that wakes is placed on an idle core if there is one. Hence a rank
/// that finds its peer on its own core sleeps at once, every 2 ms at most: without an idle core, a sleep moves no
/// thread, and a wake-up costs more than a yield. Threads: the one that runs the channel's work.
class PeerPace {
 public:
  explicit PeerPace(const WaitLimits& limits) noexcept : limits_(limits) {}

  /// Before the first look at what is awaited.
  void begin() noexcept {
    pace_.reset();
    turn_ = 0;
  }

  /// Spins or yields once. @returns false if the caller is to sleep
  bool spin_once(const ControlBlock& control, int rank, int peer) noexcept {
    if (turn_++ == first_look && limits_.cores_suffice && on_one_core(control.slot(rank), control.slot(peer))) {
      if (may_sleep()) {
        return false;
      }
      pace_.skip_spins();
    }
    const WaitAction action = pace_.next();
    if (action == WaitAction::spin) {
      spin_pause();
    } else if (action == WaitAction::yield) {
      pace_.yield();
    }
    return action != WaitAction::sleep;
  }

 private:
  static constexpr int first_look = 20;

  /// Publishes the core that this rank waits on, and reads that of the peer.
  static bool on_one_core(RankSlot& own, const RankSlot& peer) noexcept {
    const auto core = static_cast<std::uint32_t>(::sched_getcpu() + 1);
    own.core.store(core, std::memory_order_relaxed);
    return core != 0 && peer.core.load(std::memory_order_relaxed) == core;
  }

  bool may_sleep() noexcept {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_sleep_) {
      return false;
    }
    next_sleep_ = now + std::chrono::milliseconds(2);
    return true;
  }

  WaitLimits limits_;
  WaitPace pace_{limits_};
  int turn_ = 0;
  std::chrono::steady_clock::time_point next_sleep_{};
};

/// Whether a counter of barriers has reached `barrier`; both may wrap.
inline bool has_reached(const std::atomic<std::uint32_t>& count, std::uint32_t barrier) noexcept {
  return static_cast<std::int32_t>(count.load() - barrier) >= 0;
}

inline bool has_arrived(const RankSlot& slot, std::uint32_t barrier) noexcept {
  return has_reached(slot.arrived.count, barrier);
}

/// The word that shows a peer's arrival, and the memory that is read right after it. Prefetching the memory during the
/// wait overlaps two transfers between cores.
struct ArrivalFlag {
  const std::atomic<std::uint32_t>* count;
  const void* next_read;
};

inline ArrivalFlag arrival_flag_of(const RankSlot& slot) noexcept {
  return {&slot.arrived.count, &slot.arrived.count};
}
inline ArrivalFlag arrival_flag_of(const OperationSlot& slot) noexcept {
  return {&slot.barrier, slot.long_input.data()};
}

/// The wait for one peer at a barrier; see Channel::wait.
struct BarrierWait {
  ControlBlock control;
  int ranks;
  std::uint32_t number;
  int awaited;       ///< the awaited peer
  ArrivalFlag flag;  ///< the awaited peer's flag

  bool done() const noexcept {
    if (has_reached(*flag.count, number)) {
      return true;
    }
    __builtin_prefetch(flag.next_read);
    return false;
  }
  int peer() const noexcept { return awaited; }
  bool may_sleep() const noexcept { return !done() && control.slot(awaited).state.load() == SlotState::serving; }
  FutexCounter& counter() const noexcept { return control.slot(awaited).arrived; }

  /// The cause if this barrier cannot complete: a peer failed before all ranks arrived, or left before it arrived
  /// itself. Checks all ranks, because the awaited peer may itself wait for such a peer.
  /// @param present names the operation; called on failure only, because it allocates
  template <class Present>
  std::optional<Cause> failure(const Present& present) const {
    for (int rank = 0; rank < ranks; ++rank) {
      const RankSlot& slot = control.slot(rank);
      const SlotState state = slot.state.load();
      if (state == SlotState::failed && !all_have_arrived()) {
        return slot.cause.load();
      }
      if (state == SlotState::closed && !has_arrived(slot, number)) {
        return Cause{CauseKind::disagreement, -1, "",
                     format_text("{} cannot be finished: rank {} has left the channel without calling it; every rank "
                                 "takes as many steps and calls the same collectives",
                                 {present(), control.job_rank(rank)})};
      }
    }
    return std::nullopt;
  }

  /// Error text: the missing ranks, those that have arrived, and the time waited.
  std::string missing(std::chrono::milliseconds waited) const {
    std::vector<int> here;
    std::vector<int> not_here;
    for (int rank = 0; rank < ranks; ++rank) {
      (has_arrived(control.slot(rank), number) ? here : not_here).push_back(control.job_rank(rank));
    }
    return format_text(
        "{} had not arrived after {} ms; {} had; does every rank call it? DTRAIN_TIMEOUT_SECONDS is how long it may "
        "take",
        {rendezvous::rank_list(not_here), waited.count(), rendezvous::rank_list(here)});
  }

 private:
  bool all_have_arrived() const noexcept {
    for (int rank = 0; rank < ranks; ++rank) {
      if (!has_arrived(control.slot(rank), number)) {
        return false;
      }
    }
    return true;
  }
};

/// Between cores that share a level-3 cache, an ordinary copy is up to twice as fast; between other cores, a copy past
/// the caches is (measured on two cores of a Zen 3 that its host moved about). No rank knows which case applies, and it
/// may change. Hence each path is timed in two of every `period` long operations, and the faster path is used in the
/// others. The bytes are the same, so ranks need not agree. Threads: the one that runs the work.
class CopyPathTuner {
 public:
  using Clock = std::chrono::steady_clock;

  /// Before an operation. @param bytes that a rank stages in it
  void begin(std::size_t bytes) noexcept {
    counts_ = bytes >= least_bytes;
    timed_ = counts_ && operations_ % period < 4;
    streamed_ = timed_ ? operations_ % period < 2 : best_[1] <= best_[0];
    spent_ = {};
    bytes_ = bytes;
  }

  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const noexcept {
    streamed_ ? kernels::stream_bytes(to, from, bytes) : kernels::copy_bytes(to, from, bytes);
  }

  /// Runs and times some work of the operation, without the waits for other ranks.
  template <class F>
  auto time(F work) noexcept {
    const Clock::time_point start = timed_ ? Clock::now() : Clock::time_point();
    const auto result = work();
    spent_ += timed_ ? Clock::now() - start : Clock::duration();
    return result;
  }

  /// After an operation whose chunks were all copied.
  void end() noexcept {
    if (counts_ && operations_++ % period == 0) {
      best_.fill(std::numeric_limits<double>::max());
    }
    if (timed_) {
      double& best = best_[streamed_ ? 1 : 0];
      best = std::min(best, static_cast<double>(spent_.count()) / static_cast<double>(bytes_));
    }
  }

 private:
  static constexpr std::uint64_t period = 128;
  static constexpr std::size_t least_bytes = std::size_t{32} << 10;

  std::uint64_t operations_ = 0;
  std::array<double, 2> best_{};  ///< clock ticks per byte: through the caches, past them
  bool counts_ = false;
  bool timed_ = false;
  bool streamed_ = true;
  Clock::duration spent_{};
  std::size_t bytes_ = 0;
};

/// Barrier: every rank increments its own `arrived` word and waits for those of all others. After barrier k, every rank
/// may read data that any rank wrote before it. After barrier k+1, no rank reads data of barrier k, so it may be
/// overwritten.
///
/// See OrderedChannel. Threads: run, and calls from its work, in the thread that runs the stream; abort, failure and
/// close in any.
class Channel final : public OrderedChannel {
 public:
  Channel(const ChannelContext& context, std::shared_ptr<Segment> segment)
      : OrderedChannel(context),
        rank_(context.members.rank),
        size_(context.members.world_size),
        describe_(context.describe),
        segment_(std::move(segment)),
        control_(segment_->base(), size_),
        pace_(WaitLimits::of_ranks(size_, cores_of_all_ranks())),
        notice_(context.notice_after, context.is_shown_by_store) {
    own_slot().job_rank.store(static_cast<std::uint32_t>(job_rank_) + 1);
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const ControlBlock& control() const noexcept { return control_; }
  kernels::Isa isa() const noexcept { return isa_; }
  CopyPathTuner& copy_path() noexcept { return copy_path_; }

  /// Runs `work(channel, operation)` as the `turn`-th enqueued operation; skips it if the channel has failed. Peers see
  /// this rank's descriptor of a collective from its next arrival on. Fails the channel if an earlier operation has not
  /// run, or another one is running.
  template <class F>
  void run(std::uint64_t turn, const Operation& operation, const F& work) noexcept {
    const auto begin = [&]() noexcept {
      operation_ = operation;
      deadline_.reset();
      if (operation.sequence != 0) {
        operation_slot(rank_).operation = operation;
        // An algorithm over messages has no barrier: after 2^31 barriers in the other slot, the last one of this slot
        // would count as one to come.
        operation_slot(rank_).barrier.store(barriers_, std::memory_order_relaxed);
      }
      work(*this, operation);
    };
    run_in_order(turn, operation, begin, [&]() noexcept { fail_early(operation); });
  }

  /// Arrives at the next barrier and waits for all ranks. @returns false if the channel has failed
  bool arrive_and_wait() noexcept {
    own_slot().arrived.set(++barriers_);
    return wait_for_all([this](int peer) { return arrival_flag_of(control_.slot(peer)); });
  }

  /// The first barrier of an operation: also compares the calls of all ranks.
  bool arrive_and_compare() noexcept {
    operation_slot(rank_).barrier.store(++barriers_, std::memory_order_release);
    own_slot().arrived.set(barriers_);
    return wait_for_all([this](int peer) { return arrival_flag_of(operation_slot(peer)); }) && all_agree();
  }

  /// Waits until `awaited.done()`: spins and yields first, then sleeps. @returns false if the channel has failed
  template <class Awaited>
  bool wait(const Awaited& awaited) noexcept {
    pace_.begin();
    do {
      if (awaited.done()) {
        return true;
      }
      if (aborted()) {
        return false;
      }
    } while (pace_.spin_once(control_, rank_, awaited.peer()));
    if (!deadline_) {
      deadline_ = Deadline::after(timeout_);
    }
    std::chrono::milliseconds slice(1);
    while (!aborted()) {
      const Deadline wake_up =
          earlier(*deadline_, Deadline::after(std::exchange(slice, std::chrono::milliseconds(20))));
      waiter_.sleep(
          awaited.counter(), [&] { return awaited.may_sleep(); }, cause_.flag(), wake_up);
      if (awaited.done()) {
        return true;
      }
      if (on_stall_) {
        on_stall_();
      }
      const auto describe = [&](std::chrono::milliseconds waited) {
        return format_text("{}: {}", {present(), awaited.missing(waited)});
      };
      if (const std::optional<Cause> cause = awaited.failure([this] { return present(); })) {
        fail(*cause);
      } else if (deadline_->passed()) {
        fail({CauseKind::timeout, job_rank_, host_, describe(std::chrono::floor<std::chrono::milliseconds>(timeout_))});
      } else {
        notice_.update(job_rank_, timeout_ - deadline_->remaining(), describe);
      }
    }
    return false;
  }

  /// The current operation, for error sentences. Threads: the one that runs the work.
  std::string present() const { return described_on(name_, operation_, describe_); }

  /// Rank `rank`'s descriptor of the current operation; valid from the operation's first barrier to its end.
  const Operation& operation_of(int rank) const noexcept { return operation_slot(rank).operation; }

  /// Memory in which a rank publishes a small input of the current operation.
  std::byte* small_input_of(int rank, std::size_t bytes) const noexcept { return operation_slot(rank).input(bytes); }

  /// Ends running and later work of this rank, and passes the cause to the peers' channels. The first cause is kept. In
  /// a process that the rank forked, ends that process's copy only, because the slot belongs to the rank.
  void abort(const Cause& cause) noexcept override {
    if (!process_.is_current()) {
      cause_.set(cause);
      return;
    }
    if (cause_.set(cause, [&] { own_slot().cause.store(cause); })) {
      leave(SlotState::failed);
      waiter_.wake();
    }
  }

  /// See OrderedChannel::close_order. Peers that wait for this rank are notified.
  void close(std::uint64_t enqueued) noexcept {
    close_order(enqueued);
    if (!aborted()) {
      leave(SlotState::closed);
    }
  }

 private:
  ~Channel() override = default;

  RankSlot& own_slot() const noexcept { return control_.slot(rank_); }
  OperationSlot& operation_slot(int rank) const noexcept {
    return control_.slot(rank).operation_slots[operation_.sequence % 2];
  }

  template <class FlagOf>
  bool wait_for_all(FlagOf flag_of) noexcept {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_ && !wait(BarrierWait{control_, size_, barriers_, peer, flag_of(peer)})) {
        return false;
      }
    }
    return !aborted();
  }

  /// Publishes that this rank arrives at no further barrier, and receives and sends nothing more.
  void leave(SlotState state) noexcept {
    own_slot().state.store(state);
    own_slot().arrived.wake();
    for (int peer = 0; peer < size_; ++peer) {
      control_.slot(peer).mailbox_events.increment();
    }
  }

  /// Compares all ranks with rank 0. Every rank does so, so that all report the same error.
  bool all_agree() noexcept {
    const Operation& first = operation_of(0);
    for (int peer = 1; peer < size_; ++peer) {
      const Operation& other = operation_of(peer);
      if (!other.agrees_with(first)) {
        fail({CauseKind::disagreement, -1, "",
              unequal_calls(position_of(first, name_), control_.job_rank(0), to_string(first), control_.job_rank(peer),
                            "called " + to_string(other))});
        return false;
      }
    }
    return true;
  }

  DTRAIN_NOT_INLINED void fail_early(const Operation& operation) {
    const std::string text = format_text("{}, {}", {described_on(name_, operation), began_early});
    fail({CauseKind::exception, job_rank_, host_, text});
  }

  const OwningProcess process_;
  const int rank_;
  const int size_;
  const DescribeOperation describe_;
  const std::shared_ptr<Segment> segment_;
  const ControlBlock control_;
  const kernels::Isa isa_ = kernels::best_isa();

  PeerPace pace_;
  WaitNotice notice_;
  CopyPathTuner copy_path_;
  std::uint32_t barriers_ = 0;
  Operation operation_;
  std::optional<Deadline> deadline_;  ///< the current operation's; set when it first sleeps, which saves clock reads
  FutexWaiter waiter_;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
