#pragma once
/// @file
/// topology::OperationSequencer: reductions run in the order in which they were enqueued, and none after the
/// communicator's end.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "dtrain/core/block_until.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Held by a communicator and by all of its enqueued work, which may outlive it. Threads: all members from any.
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

  /// Runs operation `number`, from 1, or calls `reject` where the one before it has not ended; neither after close().
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

  /// Blocking: until the first `count` operations have run. `help()` is called before each short sleep, to run them.
  /// @returns false at the deadline
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

  /// From now on nothing runs. Calls `end()` where not all of `count` have run. Blocking: until the one that runs in
  /// another thread has ended, which `end` sees to.
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
