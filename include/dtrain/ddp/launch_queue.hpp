#pragma once
/// @file
/// The launch queue: buckets become complete in any order and are launched in the plan's.

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <span>
#include <vector>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Collectives match by order, so every rank launches bucket 0, 1, 2, ... whatever order its gradients came in.
/// Threads: `arrived` and `resume_if_held` concurrently; everything else between steps.
class LaunchQueue {
 public:
  /// `sizes[b]` is the number of parameters in bucket b, at least one.
  explicit LaunchQueue(std::span<const std::size_t> sizes) { plan(sizes); }

  /// The buckets are others from the next step on.
  void plan(std::span<const std::size_t> sizes) {
    entries_ = std::vector<Entry>(sizes.size());
    for (std::size_t bucket = 0; bucket < sizes.size(); ++bucket) {
      entries_[bucket].size = sizes[bucket];
    }
    next_ = 0;  // none of these is launched
    complete_ = 0;
  }

  void begin_step() noexcept {
    for (Entry& entry : entries_) {
      entry.pending.store(entry.size, std::memory_order_relaxed);
      entry.complete = false;
    }
    next_ = 0;
    complete_ = 0;
    failure_ = nullptr;
  }

  /// A gradient of `bucket` is in its place. The last of a bucket takes the gate, once, calls `complete(bucket)`, then
  /// `launch(b)` for every complete bucket whose predecessors are launched, until one says that there is no room for it
  /// now (false). An exception of the two passes through; nothing is launched after.
  template <class Complete, class Launch>
  void arrived(std::size_t bucket, Complete&& complete, Launch&& launch) {
    // Releases this thread's writes to the bucket, and acquires those of the threads that came before.
    if (entries_[bucket].pending.fetch_sub(1, std::memory_order_acq_rel) != 1) {
      return;
    }
    const std::lock_guard gate(gate_);
    or_fail([&] { complete(bucket); });
    entries_[bucket].complete = true;
    ++complete_;
    launch_what_can(launch);
  }

  /// Launches what had no room when it became complete. Rethrows what a launch threw in this step.
  template <class Launch>
  void resume(Launch&& launch) {
    const std::lock_guard gate(gate_);
    launch_what_can(launch);
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

  /// The same where something is waiting for room, for whoever has made some. What a launch throws is kept.
  template <class Launch>
  void resume_if_held(Launch&& launch) noexcept {
    if (!held_.load()) {
      return;
    }
    try {
      const std::lock_guard gate(gate_);
      launch_what_can(launch);
    } catch (...) {
      // finish() asks.
    }
  }

  /// Nothing is launched from now on. Threads: any.
  void close() noexcept {
    const std::lock_guard gate(gate_);
    closed_ = true;
  }

  /// Whether every gradient of this step is in its place, and not only announced.
  bool all_complete() const {
    const std::lock_guard gate(gate_);
    return complete_ == entries_.size();
  }

  /// How many buckets of this step are launched.
  std::size_t launched() const {
    const std::lock_guard gate(gate_);
    return next_;
  }

  /// Rethrows what `launch` threw in this step, for a caller that was not the one it was thrown to.
  void throw_if_launch_failed() const {
    const std::lock_guard gate(gate_);
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

 private:
  /// On a line of its own: gradients of neighbouring buckets arrive on different threads.
  struct alignas(64) Entry {
    std::atomic<std::size_t> pending{0};
    std::size_t size = 0;
    bool complete = false;  // guarded by the gate
  };

  /// Under the gate, as what follows.
  template <class Launch>
  void launch_what_can(Launch& launch) {
    held_.store(false);
    while (!failure_ && !closed_ && next_ < entries_.size() && entries_[next_].complete) {
      bool launched = false;
      or_fail([&] { launched = launch(next_); });
      if (launched) {
        ++next_;
      } else if (held_.exchange(true)) {
        return;  // there was no room even after whoever makes some could know of it
      }
    }
  }

  template <class F>
  void or_fail(F&& act) {
    try {
      act();
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  }

  std::vector<Entry> entries_;
  mutable std::mutex gate_;
  std::size_t next_ = 0;
  std::size_t complete_ = 0;
  std::exception_ptr failure_;
  std::atomic<bool> held_{false};  ///< a complete bucket waits for room
  bool closed_ = false;
};

}  // namespace DTRAIN_NAMESPACE::ddp
