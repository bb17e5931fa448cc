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

/// State that the owner of a background task and the loop share.
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
  /// Blocking: until the coroutine's frame is destroyed or the deadline passes. @returns whether it is destroyed
  bool wait_until_gone(Deadline deadline) const {
    std::unique_lock lock(mutex_);
    return block_until(changed_, lock, deadline, [this] { return gone_; });
  }
  /// Blocking: for as long as a coroutine keeps the loop's thread busy.
  void wait_until_gone() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return gone_; });
  }

  async::Outcome<T> outcome;     ///< used by the loop's thread until the coroutine is gone, then by the owner's
  async::ManualResetEvent stop;  ///< set when the coroutine is over or is to end; loop's thread only
  async::TaskHandle task;        ///< loop's thread only
  bool cancelled = false;        ///< before it began; loop's thread only

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool gone_ = false;  ///< guarded by mutex_
};

}  // namespace detail

/// Owns a coroutine that ProcessGroup::spawn has started. Destroying the owner cancels the coroutine and destroys its
/// locals. Lifetime: may outlive the group, whose destruction ends the coroutine.
/// Blocking: its destructor, while another coroutine keeps the control loop busy. Threads: one at a time. On the
/// control loop's thread nothing blocks: a coroutine that destroys its own owner ends at its next suspension.
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

  /// Whether the coroutine has ended, by itself or cancelled; also true if nothing is owned.
  bool done() const { return state_ == nullptr || state_->gone(); }

  /// Cancels the coroutine, as the destructor does.
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
    loop_handle->post(end);  // a closed loop has ended the coroutine, or will soon
    state->wait_until_gone();
  }

  /// The coroutine's value, once. Blocking: until the coroutine ends, at most until the deadline; then it continues.
  /// @throws what the coroutine threw; the job's first cause if it has failed; Error (timeout); Error (closed) if the
  /// rank has left the job; Error (invalid_argument) on the control loop's thread, or if nothing is owned
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
