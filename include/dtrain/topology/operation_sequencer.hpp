#pragma once
/// @file
/// topology::OperationSequencer: runs reductions in enqueue order, and none after the communicator's destruction.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "dtrain/core/block_until.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Reference-counted: a communicator and each of its enqueued operations, which may outlive it, hold one reference.
/// Threads: all members from any.
class OperationSequencer {
 public:
  OperationSequencer() = default;
  OperationSequencer(const OperationSequencer&) = delete;
  OperationSequencer& operator=(const OperationSequencer&) = delete;

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete this;
    }
  }

  /// Runs operation `number` (the first is 1). Calls `reject` instead if the previous operation has not ended. Calls
  /// neither after close().
  template <class Work, class Reject>
  void run(std::uint64_t number, Work work, Reject reject) noexcept {
    std::unique_lock lock(mutex_);
    if (!closed_) {
      const bool in_order = running_ == 0 && number == done_ + 1;
      ++running_;
      lock.unlock();
      if (in_order) {
        work();
      } else {
        reject();
      }
      lock.lock();
      --running_;
    }
    done_ = std::max(done_, number);
    changed_.notify_all();
  }

  /// Blocks until the first `count` operations have run. Before each wait of at most 20 ms it calls `help()`, which may
  /// run them. @returns false at the deadline
  template <class Help>
  bool wait_until_done(std::uint64_t count, Deadline deadline, Help help) {
    std::unique_lock lock(mutex_);
    while (done_ < count && !deadline.passed()) {
      lock.unlock();
      help();
      lock.lock();
      const Deadline soon = earlier(deadline, Deadline::after(std::chrono::milliseconds(20)));
      block_until(changed_, lock, soon, [&] { return done_ >= count; });
    }
    return done_ >= count;
  }

  /// Stops further operations. If fewer than `count` have run, calls `end()`, which must end those that are running.
  /// Blocks until no operation is running in another thread.
  template <class End>
  void close(std::uint64_t count, End end) noexcept {
    std::unique_lock lock(mutex_);
    closed_ = true;
    if (done_ < count) {
      lock.unlock();
      end();
      lock.lock();
    }
    while (running_ != 0) {
      block_until(changed_, lock, Deadline::after(std::chrono::seconds(1)), [this] { return running_ == 0; });
    }
  }

 private:
  ~OperationSequencer() = default;

  std::atomic<std::int64_t> references_{1};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t done_ = 0;
  int running_ = 0;
  bool closed_ = false;
};

}  // namespace DTRAIN_NAMESPACE::topology
