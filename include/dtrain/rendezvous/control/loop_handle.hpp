#pragma once
/// @file
/// LoopHandle: access to a rank's control loop from any thread, also when the loop has ended.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/async/loop_thread.hpp"
#include "dtrain/core/process/owning_process.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// The deadline plus 3 s, for a blocking call around a task that itself keeps the deadline. The task then times out
/// first, and its error names what it waited for.
inline Deadline with_grace(Deadline deadline) {
  constexpr std::chrono::seconds moment(3);
  const bool has_room = deadline.instant() < Deadline::Clock::time_point::max() - moment;
  return has_room ? Deadline::at(deadline.instant() + moment) : deadline;
}

/// Shared by objects that may outlive the loop's owner. After close(), their calls fail instead of using a loop that is
/// gone. Calls also fail in a process that was forked since: it has no such thread. Threads: all members from any
/// thread; close() not from a thread inside run_blocking.
class LoopHandle {
 public:
  explicit LoopHandle(async::LoopThread& thread) noexcept : thread_(&thread) {}

  /// LoopThread::run_blocking. @throws also Error (closed) after close(), and in a process that was forked since
  template <class Make>
  auto run_blocking(Make&& make, Deadline deadline, std::string_view doing) {
    const LoopUse use(*this);
    if (use.thread == nullptr) {
      throw Error(Errc::closed,
                  std::string(doing) + (process_.is_current() ? ": this rank's process group has been destroyed"
                                                              : ": this process was forked from a rank, and is none"));
    }
    return use.thread->run_blocking(std::forward<Make>(make), deadline, doing);
  }

  /// EventLoop::post; false after close(), and in a process that was forked since.
  template <class F>
  bool post(F function) {
    const LoopUse use(*this);
    return use.thread != nullptr && use.thread->loop().post(std::move(function));
  }

  /// False in a process that was forked since.
  bool is_of_this_process() const noexcept { return process_.is_current(); }

  /// Whether the caller is on the loop's thread, where nothing may block; false after close().
  bool on_loop_thread() {
    const LoopUse use(*this);
    return use.thread != nullptr && use.thread->is_current();
  }

  /// Refuses new calls. Blocking: until the running calls have returned. @pre the caller has ended what they wait for
  void close() {
    if (!process_.is_current()) {
      return;
    }
    std::unique_lock lock(mutex_);
    thread_ = nullptr;
    changed_.wait(lock, [this] { return uses_ == 0; });
  }

 private:
  struct LoopUse {
    explicit LoopUse(LoopHandle& owner) : handle(owner) {
      if (!handle.process_.is_current()) {
        return;  // the mutex is not usable either: another thread may have held it at the fork
      }
      const std::lock_guard lock(handle.mutex_);
      thread = handle.thread_;
      ++handle.uses_;
    }
    LoopUse(const LoopUse&) = delete;
    LoopUse& operator=(const LoopUse&) = delete;
    ~LoopUse() {
      if (!handle.process_.is_current()) {
        return;
      }
      const std::lock_guard lock(handle.mutex_);
      if (--handle.uses_ == 0) {
        handle.changed_.notify_all();
      }
    }
    LoopHandle& handle;
    async::LoopThread* thread = nullptr;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  async::LoopThread* thread_;  ///< guarded by mutex_; null once closed
  int uses_ = 0;               ///< guarded by mutex_
  const OwningProcess process_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
