#pragma once
/// @file
/// rendezvous::BackgroundTask: the owner of a user's coroutine on a rank's control loop.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "dtrain/async/manual_reset_event.hpp"
#include "dtrain/core/block_until.hpp"
#include "dtrain/rendezvous/control/loop_handle.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

/// What the owner of a background task and the loop share.
template <class T>
class BackgroundState {
 public:
  explicit BackgroundState(async::EventLoop& loop) noexcept : stop(loop) {}

  void set_gone() noexcept {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    changed_.notify_all();
  }
  bool gone() const {
    const std::lock_guard lock(mutex_);
    return gone_;
  }
  /// Blocking: until the coroutine's frame is destroyed or the deadline passes. @returns whether it is
  bool wait_until_gone(Deadline deadline) const {
    std::unique_lock lock(mutex_);
    return block_until(changed_, lock, deadline, [this] { return gone_; });
  }
  /// Blocking: for as long as a coroutine keeps the loop's thread busy.
  void wait_until_gone() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return gone_; });
  }

  async::Outcome<T> outcome;     ///< the loop's thread until it is gone, then the owner's
  async::ManualResetEvent stop;  ///< set when it is over, or to be ended: the loop's thread
  async::TaskHandle task;        ///< the loop's thread only
  bool cancelled = false;        ///< before it began: the loop's thread only

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool gone_ = false;  ///< guarded by mutex_
};

}  // namespace detail

/// Owns a coroutine that ProcessGroup::spawn has started: destroying it cancels the coroutine, which is then gone, with
/// all its locals. Lifetime: may outlive the group, whose end has ended the coroutine.
/// Blocking: its destructor, while another coroutine keeps the control loop busy. Threads: one at a time, the control
/// loop's included (there nothing waits: a coroutine that destroys its own owner ends at its next suspension).
template <class T>
class [[nodiscard]] BackgroundTask {
 public:
  BackgroundTask() noexcept = default;
  BackgroundTask(std::shared_ptr<detail::BackgroundState<T>> state, std::shared_ptr<LoopHandle> control) noexcept
      : state_(std::move(state)), loop_handle_(std::move(control)) {}
  BackgroundTask(BackgroundTask&& other) noexcept = default;
  BackgroundTask& operator=(BackgroundTask&& other) noexcept {
    if (this != &other) {
      cancel();
      state_ = std::move(other.state_);
      loop_handle_ = std::move(other.loop_handle_);
    }
    return *this;
  }
  ~BackgroundTask() { cancel(); }

  /// Whether the coroutine has ended, by itself or not; also true where nothing is owned.
  bool done() const { return state_ == nullptr || state_->gone(); }

  /// What the destructor does.
  void cancel() noexcept {
    const std::shared_ptr<detail::BackgroundState<T>> state = std::exchange(state_, nullptr);
    const std::shared_ptr<LoopHandle> loop_handle = std::exchange(loop_handle_, nullptr);
    if (!state || !loop_handle->is_of_this_process() || state->gone()) {
      return;
    }
    const auto end = [state] {
      state->cancelled = true;
      state->task.cancel();
    };
    if (loop_handle->on_loop_thread()) {
      return end();
    }
    loop_handle->post(end);  // where the loop takes no more, it has ended the coroutine or is about to
    state->wait_until_gone();
  }

  /// The coroutine's value, once. Blocking: until it has ended, at most until the deadline; it goes on then.
  /// @throws what the coroutine threw; the job's first cause if it has failed meanwhile; Error (timeout); Error
  /// (closed) if the rank has left the job; Error (invalid_argument) on the control loop's own thread, and where
  /// nothing is owned
  T wait(Deadline deadline) {
    if (!state_ || loop_handle_->on_loop_thread()) {
      throw Error(Errc::invalid_argument, std::string(waiting) + (state_ ? ": called on the control thread, which "
                                                                           "runs it; co_await the coroutine instead"
                                                                         : ": there is none"));
    }
    if (!state_->wait_until_gone(deadline)) {
      throw Error(Errc::timeout, std::string(waiting) + ": the deadline passed");
    }
    if (!state_->outcome.done()) {
      throw Error(Errc::closed, std::string(waiting) + ": it was ended, since this rank has left the job");
    }
    return state_->outcome.take();
  }

 private:
  static constexpr const char* waiting = "waiting for a coroutine on the control loop";

  std::shared_ptr<detail::BackgroundState<T>> state_;
  std::shared_ptr<LoopHandle> loop_handle_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
