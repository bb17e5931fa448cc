#pragma once
/// @file
/// Queue of a host stream: caller-runs work queue; the thread that waits for the work runs its items in order.

#include <atomic>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/futex.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/stream.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// Maximum size of a callable with its captures. Larger data is captured by its address.
inline constexpr std::size_t work_item_bytes = 112;

/// A callable that a queue stores: no allocation, no exceptions, no destructor. A callable that holds a reference has
/// `drop()`, which releases the reference if the callable never runs.
template <class F>
concept WorkFunction = std::is_trivially_copyable_v<F> && std::is_nothrow_invocable_r_v<void, F&> &&
                           sizeof(F) <= work_item_bytes
                       && alignof(F) <= alignof(std::max_align_t);

/// Work with a `drop()`.
template <class F>
concept DroppableWork = WorkFunction<F> && requires(F& work) {
  { work.drop() }
  noexcept->std::same_as<void>;
};

/// A slot for work; two cache lines, so that neighbours in a ring share none.
class alignas(64) WorkItem {
 public:
  template <WorkFunction F>
  void store(const F& work) noexcept {
    ::new (static_cast<void*>(storage_)) F(work);
    act_ = [](std::byte* storage, bool run) noexcept {
      F& stored = *std::launder(reinterpret_cast<F*>(storage));
      if (run) {
        stored();
      } else if constexpr (DroppableWork<F>) {
        stored.drop();
      }
    };
  }

  void run() noexcept { act_(storage_, true); }
  void drop() noexcept { act_(storage_, false); }

 private:
  alignas(std::max_align_t) std::byte storage_[work_item_bytes];
  void (*act_)(std::byte*, bool) noexcept = nullptr;
};

static_assert(sizeof(WorkItem) == 128, "dtrain: a work item is two cache lines");

class StreamRef;

/// A host stream: owns a ring of work items. Each item gets a ticket (1, 2, ...) when it is enqueued. Items run in the
/// order of tickets, one at a time, in a thread that waits for them or in a HelperThread.
///
/// Producers and the runner share no lock. A producer writes an item and publishes its ticket (release); the runner
/// reads the ticket (acquire) and then the item. Therefore data that the work reads must be written before the enqueue;
/// ThreadSanitizer reports later writes.
///
/// Threads: enqueue from any thread; wait and poll from any thread. Each work item must end by a deadline. Lifetime:
/// not movable; outlives its references, events and HelperThread. Destruction drops work that has not run.
/// @ingroup streams
class Queue {
 public:
  /// Capacity of the ring, unless reserve() makes it larger. An enqueue to a full ring runs the oldest work, or waits
  /// for it, instead of growing.
  static constexpr std::uint64_t initial_capacity = 256;

  Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  ~Queue() {
    for (std::uint64_t ticket = completed_.load(); ticket < published_.load(); ++ticket) {
      slot(ticket).drop();
    }
  }

  StreamRef ref() noexcept;

  /// Makes the ring hold at least `items` work items. Blocks until the work enqueued so far is done. Threads: no other
  /// thread enqueues meanwhile. @throws Error (invalid_argument) if the caller is itself work of this queue
  void reserve(std::uint64_t items);

  /// Enqueues work. Blocks only if the ring is full. Wakes a parked HelperThread.
  /// @throws Error (invalid_argument) if the ring is full and the caller is itself work of this queue
  template <WorkFunction F>
  void enqueue(const F& work) {
    while (!try_enqueue(work)) {
      block_until_complete(published() + 1 - ring_.size(), Deadline::after(full_ring_timeout));
    }
    wake_helper();
  }

  /// The ticket of the latest work.
  std::uint64_t published() const noexcept { return published_.load(std::memory_order_acquire); }

  /// The ticket of the latest work that is done.
  std::uint64_t completed() const noexcept { return completed_.load(std::memory_order_acquire); }

  bool is_complete(std::uint64_t ticket) const noexcept { return completed() >= ticket; }

  bool has_helper() const noexcept { return has_helper_.load(); }

  /// Whether there is work that no thread runs, and no HelperThread.
  bool has_unattended_work() const noexcept {
    return completed_.load() < published_.load() && runner_state_.load() == no_runner && !has_helper_.load();
  }

  /// Blocking: runs the work up to `ticket` in this thread if no other thread runs it; else sleeps until it is done or
  /// the other thread stops running. The deadline is checked between two work items.
  /// @throws Error (invalid_argument) if the caller is itself work of this queue, which would wait for ever
  WaitResult block_until_complete(std::uint64_t ticket, Deadline deadline);

 private:
  friend class HelperThread;
  friend class OnDemandRunner;

  static constexpr std::uint64_t no_waiter = std::numeric_limits<std::uint64_t>::max();
  static constexpr std::chrono::minutes full_ring_timeout{1};  // then the enqueue waits again: work has deadlines
  enum RunnerState : std::uint32_t { no_runner, has_runner };
  enum HelperState : std::uint32_t { helper_awake, helper_parked };

  WorkItem& slot(std::uint64_t index) noexcept { return ring_[index & (ring_.size() - 1)]; }

  template <WorkFunction F>
  bool try_enqueue(const F& work) {
    const std::lock_guard gate(producers_);
    const std::uint64_t index = published_.load(std::memory_order_relaxed);
    if (index - completed_.load(std::memory_order_acquire) >= ring_.size()) {
      return false;
    }
    slot(index).store(work);
    published_.store(index + 1);  // seq_cst, as are the other words here: see wake_helper and sleep_until_progress
    return true;
  }

  /// Runs work up to `ticket` while there is some and `may_continue()`. @returns false if another thread runs.
  template <class F>
  bool run_up_to(std::uint64_t ticket, F may_continue) noexcept {
    std::uint32_t expected = no_runner;
    if (!runner_state_.compare_exchange_strong(expected, has_runner)) {
      return false;
    }
    runner_thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    std::uint64_t done = completed_.load(std::memory_order_relaxed);
    while (done < ticket && done < published() && may_continue()) {
      slot(done).run();
      completed_.store(++done);
      if (done >= wanted_.load()) {
        wake_waiters();
      }
    }
    runner_thread_.store(std::thread::id(), std::memory_order_relaxed);
    runner_state_.store(no_runner);
    if (wanted_.load() != no_waiter) {
      wake_waiters();  // one of the waiters continues
    }
    if (done < published_.load()) {
      wake_helper();
    }
    return true;
  }

  /// Sleeps until `ticket` is complete or no thread runs work; may return early. A waiter stores the ticket it wants,
  /// reads the words again and sleeps; the runner changes the words and then reads that ticket. All are seq_cst, so at
  /// least one of the two sees the other's store.
  FutexResult sleep_until_progress(std::uint64_t ticket, Deadline deadline) noexcept;

  void wake_waiters() noexcept;

  /// Wakes the helper at most once for each time it parked.
  void wake_helper() noexcept {
    std::uint32_t expected = helper_parked;
    if (helper_.load() == helper_parked && helper_.compare_exchange_strong(expected, helper_awake)) {
      futex_wake(helper_, 1, FutexScope::process);
    }
  }

  /// Puts the helper to sleep until there is work that no thread runs, or until the helper is to stop.
  void park_helper() noexcept;

  alignas(64) std::mutex producers_;
  std::atomic<std::uint64_t> published_{0};
  alignas(64) std::atomic<std::uint64_t> completed_{0};
  std::atomic<std::uint32_t> runner_state_{no_runner};
  std::atomic<std::thread::id> runner_thread_{};
  alignas(64) std::atomic<std::uint64_t> wanted_{no_waiter};  ///< lowest ticket that a thread sleeps for
  std::atomic<std::uint32_t> signal_{0};
  std::atomic<std::uint32_t> helper_{helper_awake};
  std::atomic<bool> has_helper_{false};                       ///< false again when the helper is to stop
  alignas(64) std::vector<WorkItem> ring_{initial_capacity};  ///< a power of two
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void Queue::reserve(std::uint64_t items) {
  if (items <= ring_.size()) {
    return;
  }
  while (block_until_complete(published(), Deadline::after(full_ring_timeout)) != WaitResult::complete) {
  }
  ring_ = std::vector<WorkItem>(std::bit_ceil(items));  // a runner reads it once it has seen a later ticket
}

DTRAIN_DEFINED WaitResult Queue::block_until_complete(std::uint64_t ticket, Deadline deadline) {
  while (!is_complete(ticket)) {
    if (run_up_to(ticket, [deadline] { return !deadline.passed(); })) {
      return is_complete(ticket) ? WaitResult::complete : WaitResult::timed_out;
    }
    if (runner_thread_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
      throw_error(Errc::invalid_argument,
                  "work that runs on a host stream waited for later work of the same stream, which cannot start "
                  "before it returns; enqueue instead of waiting, or use another stream");
    }
    if (sleep_until_progress(ticket, deadline) == FutexResult::timed_out) {
      return is_complete(ticket) ? WaitResult::complete : WaitResult::timed_out;
    }
  }
  return WaitResult::complete;
}

DTRAIN_DEFINED FutexResult Queue::sleep_until_progress(std::uint64_t ticket, Deadline deadline) noexcept {
  const auto progressed = [&] { return completed_.load() >= ticket || runner_state_.load() == no_runner; };
  for (int spins = 0; spins < 200; ++spins) {
    if (progressed()) {
      return FutexResult::awake;
    }
    spin_pause();
  }
  const std::uint32_t seen = signal_.load();
  std::uint64_t lowest = wanted_.load();
  while (ticket < lowest && !wanted_.compare_exchange_weak(lowest, ticket)) {
  }
  return progressed() ? FutexResult::awake : futex_wait(signal_, seen, deadline, FutexScope::process);
}

DTRAIN_DEFINED void Queue::wake_waiters() noexcept {
  wanted_.store(no_waiter);
  signal_.fetch_add(1);
  futex_wake_all(signal_, FutexScope::process);
}

DTRAIN_DEFINED void Queue::park_helper() noexcept {
  helper_.store(helper_parked);
  const bool has_work = completed_.load() < published_.load() && runner_state_.load() == no_runner;
  if (!has_work && has_helper_.load()) {
    futex_wait(helper_, helper_parked, Deadline::after(std::chrono::seconds(10)), FutexScope::process);
  }
  helper_.store(helper_awake);
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::stream::host
