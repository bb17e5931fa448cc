#pragma once
/// @file
/// topology::Turns: reductions run in the order of their enqueueing, and none after the communicator's end.

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
class Turns {
 public:
  Turns() = default;
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete this;
    }
  }

  /// Runs `work` as the `turn`-th, or `refuse` where the one before it has not ended; neither after close().
  template <class Work, class Refuse>
  void run(std::uint64_t turn, Work work, Refuse refuse) noexcept {
    std::unique_lock lock(mutex_);
    if (!closed_) {
      const bool in_order = running_ == 0 && turn == done_ + 1;
      ++running_;
      lock.unlock();
      if (in_order) {
        work();
      } else {
        refuse();
      }
      lock.lock();
      --running_;
    }
    done_ = std::max(done_, turn);
    changed_.notify_all();
  }

  /// Blocking: until the first `turns` have run. `help()` is called before each short sleep, for who is to run them.
  /// @returns false at the deadline
  template <class Help>
  bool settle(std::uint64_t turns, Deadline deadline, Help help) {
    std::unique_lock lock(mutex_);
    while (done_ < turns && !deadline.passed()) {
      lock.unlock();
      help();
      lock.lock();
      const Deadline nap = earlier(deadline, Deadline::after(std::chrono::milliseconds(20)));
      block_until(changed_, lock, nap, [&] { return done_ >= turns; });
    }
    return done_ >= turns;
  }

  /// From now on nothing runs. Calls `end()` where not all of `turns` have run. Blocking: until what runs in another
  /// thread has ended, which `end` sees to.
  template <class End>
  void close(std::uint64_t turns, End end) noexcept {
    std::unique_lock lock(mutex_);
    closed_ = true;
    if (done_ < turns) {
      lock.unlock();
      end();
      lock.lock();
    }
    while (running_ != 0) {
      block_until(changed_, lock, Deadline::after(std::chrono::seconds(1)), [this] { return running_ == 0; });
    }
  }

 private:
  ~Turns() = default;

  std::atomic<std::int64_t> references_{1};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t done_ = 0;
  int running_ = 0;
  bool closed_ = false;
};

}  // namespace DTRAIN_NAMESPACE::topology
