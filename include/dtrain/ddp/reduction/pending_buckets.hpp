#pragma once
/// @file
/// PendingBuckets of a BucketReduction: launches complete buckets in the plan's order, equal on all ranks.

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <span>
#include <vector>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Collectives match by order: every rank launches buckets 0, 1, 2, ..., whatever the order of its ready gradients.
/// Each bucket is launched by itself, also if several are complete. Ranks differ in the buckets that are complete. NCCL
/// chooses the algorithm and protocol of collectives in one ncclGroupEnd by the sum of their sizes (src/enqueue.cc,
/// 2.18 to 2.30). Ranks that choose differently hang or reduce wrongly.
/// Threads: `mark_gradient_ready` concurrently; everything else between steps, except where a member says otherwise.
class PendingBuckets {
 public:
  /// `sizes[b]` is the number of parameters in bucket b, at least one.
  explicit PendingBuckets(std::span<const std::size_t> sizes) { plan(sizes); }

  /// Replaces the buckets, from the next step on.
  void plan(std::span<const std::size_t> sizes) {
    buckets_ = std::vector<BucketState>(sizes.size());
    for (std::size_t bucket = 0; bucket < sizes.size(); ++bucket) {
      buckets_[bucket].size = sizes[bucket];
    }
    next_ = 0;  // none of the new buckets is launched
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

  /// Marks one gradient as packed into `bucket`. The call for the bucket's last gradient locks the mutex, once, and
  /// calls
  /// - `complete(bucket)`, then
  /// - `launch(b)` for each complete bucket whose predecessors are launched.
  /// An exception of `complete` or `launch` is passed on; nothing is launched after the exception.
  template <class Complete, class Launch>
  void mark_gradient_ready(std::size_t bucket, Complete complete, Launch launch) {
    // Releases this thread's writes to the bucket, and acquires earlier threads' writes.
    if (buckets_[bucket].pending.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      mark_complete(bucket, complete, launch);
    }
  }

  /// Stops launching. Threads: any.
  void close() noexcept {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }

  /// Whether every gradient of this step is packed into its bucket, and not only marked ready.
  bool all_complete() const {
    const std::lock_guard lock(mutex_);
    return complete_ == buckets_.size();
  }

  /// Rethrows the exception of a launch in this step, for a caller on another thread.
  void throw_if_launch_failed() const {
    const std::lock_guard lock(mutex_);
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

 private:
  /// A bucket on a separate cache line: gradients of neighbouring buckets become ready on different threads.
  struct alignas(64) BucketState {
    std::atomic<std::size_t> pending{0};
    std::size_t size = 0;
    bool complete = false;  // guarded by the mutex
  };

  template <class Complete, class Launch>
  DTRAIN_NOT_INLINED void mark_complete(std::size_t bucket, Complete& complete, Launch& launch) {
    const std::lock_guard lock(mutex_);
    or_fail([&] { complete(bucket); });
    buckets_[bucket].complete = true;
    ++complete_;
    for (; !failure_ && !closed_ && next_ < buckets_.size() && buckets_[next_].complete; ++next_) {
      or_fail([&] { launch(next_); });
    }
  }

  /// Calls `act`, and keeps its exception. @pre the mutex is locked
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
  bool closed_ = false;
};

}  // namespace DTRAIN_NAMESPACE::ddp
