#pragma once
/// @file
/// The bucket queue: buckets become complete in any order and are launched in the plan's.

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <span>
#include <vector>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Collectives match by order, so every rank launches bucket 0, 1, 2, ... whatever order its gradients came in.
/// Threads: `mark_gradient_ready` and `resume_if_waiting` concurrently; everything else between steps.
class BucketQueue {
 public:
  /// `sizes[b]` is the number of parameters in bucket b, at least one.
  explicit BucketQueue(std::span<const std::size_t> sizes) { plan(sizes); }

  /// The buckets are others from the next step on.
  void plan(std::span<const std::size_t> sizes) {
    buckets_ = std::vector<BucketState>(sizes.size());
    for (std::size_t bucket = 0; bucket < sizes.size(); ++bucket) {
      buckets_[bucket].size = sizes[bucket];
    }
    next_ = 0;  // none of these is launched
    complete_ = 0;
  }

  void begin_step() noexcept {
    for (BucketState& bucket_state : buckets_) {
      bucket_state.pending.store(bucket_state.size, std::memory_order_relaxed);
      bucket_state.complete = false;
    }
    next_ = 0;
    complete_ = 0;
    failure_ = nullptr;
  }

  /// A gradient of `bucket` is in the bucket. The last one locks the mutex, once, calls `complete(bucket)`, then
  /// `launch(b)` for every complete bucket whose predecessors are launched, until one returns that there is no capacity
  /// now (false). An exception of the two passes through; nothing is launched after.
  template <class Complete, class Launch>
  void mark_gradient_ready(std::size_t bucket, Complete&& complete, Launch&& launch) {
    // Releases this thread's writes to the bucket, and acquires those of the threads that came before.
    if (buckets_[bucket].pending.fetch_sub(1, std::memory_order_acq_rel) != 1) {
      return;
    }
    const std::lock_guard lock(mutex_);
    or_fail([&] { complete(bucket); });
    buckets_[bucket].complete = true;
    ++complete_;
    launch_complete(launch);
  }

  /// Launches buckets for which there was no capacity when they became complete. Rethrows what a launch threw in this
  /// step.
  template <class Launch>
  void resume(Launch&& launch) {
    const std::lock_guard lock(mutex_);
    launch_complete(launch);
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

  /// The same where a bucket waits for capacity, for the thread that has freed some. What a launch throws is kept.
  template <class Launch>
  void resume_if_waiting(Launch&& launch) noexcept {
    if (!waits_for_capacity_.load()) {
      return;
    }
    try {
      const std::lock_guard lock(mutex_);
      launch_complete(launch);
    } catch (...) {
      // finish() asks.
    }
  }

  /// Nothing is launched from now on. Threads: any.
  void close() noexcept {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }

  /// Whether every gradient of this step is in its bucket, and not only announced.
  bool all_complete() const {
    const std::lock_guard lock(mutex_);
    return complete_ == buckets_.size();
  }

  /// How many buckets of this step are launched.
  std::size_t launched() const {
    const std::lock_guard lock(mutex_);
    return next_;
  }

  /// Rethrows what `launch` threw in this step, for a caller other than the one it was thrown to.
  void throw_if_launch_failed() const {
    const std::lock_guard lock(mutex_);
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

 private:
  /// On a cache line of its own: gradients of neighbouring buckets become ready on different threads.
  struct alignas(64) BucketState {
    std::atomic<std::size_t> pending{0};
    std::size_t size = 0;
    bool complete = false;  // guarded by the mutex
  };

  /// Under the mutex, as what follows.
  template <class Launch>
  void launch_complete(Launch& launch) {
    waits_for_capacity_.store(false);
    while (!failure_ && !closed_ && next_ < buckets_.size() && buckets_[next_].complete) {
      bool launched = false;
      or_fail([&] { launched = launch(next_); });
      if (launched) {
        ++next_;
      } else if (waits_for_capacity_.exchange(true)) {
        return;  // no capacity, even after the thread that frees some could see the flag
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

  std::vector<BucketState> buckets_;
  mutable std::mutex mutex_;
  std::size_t next_ = 0;
  std::size_t complete_ = 0;
  std::exception_ptr failure_;
  std::atomic<bool> waits_for_capacity_{false};  ///< a complete bucket waits for capacity
  bool closed_ = false;
};

}  // namespace DTRAIN_NAMESPACE::ddp
