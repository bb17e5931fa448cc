#pragma once
/// @file
/// LoopHandle: starts coroutines on another thread's EventLoop, and may outlive it. BackgroundTask: owner of such a
/// coroutine. LoopThread: a loop with its thread.

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/async/thread.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::async {

namespace detail {

/// Whether T is a Task, or converts to one as a call of the store does.
template <class T>
inline constexpr bool is_task = requires {
  typename T::value_type;
  requires std::is_convertible_v<T, Task<typename T::value_type>>;
};

/// make(loop), or make() if it takes no loop.
template <class Make>
auto call_with_loop(Make& make, EventLoop& loop) {
  if constexpr (std::is_invocable_v<Make&, EventLoop&>) {
    return make(loop);
  } else {
    return make();
  }
}

template <class Make>
struct TaskOf {
  using type = decltype(call_with_loop(std::declval<Make&>(), std::declval<EventLoop&>()));
  static_assert(is_task<type>,
                "dtrain: run and spawn take a coroutine that returns dtrain::Task<T>; write "
                "'[&]() -> dtrain::Task<int> { ... }'");
};

}  // namespace detail

/// State that the owner of a coroutine and the loop share, without the value: compiled once. Threads: the loop's until
/// the coroutine is gone, then the owner's; the functions any.
class SpawnState : public ListNode {
 public:
  /// The coroutine's frame is gone, or was never made: frees `make`, then notifies the owner.
  void end() noexcept;
  bool gone() const {
    const std::lock_guard lock(mutex_);
    return gone_;
  }
  /// Blocking: until the coroutine is destroyed or the deadline passes. @returns whether it is destroyed
  bool wait_until_gone(Deadline deadline) const;

  std::function<Task<void>(EventLoop&)> make;  ///< lives as long as the coroutine that it makes
  TaskHandle task;
  bool cancelled = false;    ///< its owner cancelled it before it began
  std::exception_ptr error;  ///< thrown by `make`, or why the group or loop has cancelled the coroutine

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool gone_ = false;  ///< guarded by mutex_
};

/// Coroutines that may be cancelled together. Threads: the loop's.
using SpawnStates = IntrusiveList<SpawnState>;

/// A SpawnState with the coroutine's result.
template <class T>
class SpawnStateOf : public SpawnState {
 public:
  Outcome<T> outcome;
};

template <class T>
class BackgroundTask;

/// Access to the EventLoop of a LoopThread, for objects that may outlive the loop. After the loop's end, and in a
/// process that was forked since, no coroutine starts. Threads: any.
class LoopHandle : public std::enable_shared_from_this<LoopHandle> {
 public:
  /// Value type of a coroutine made by Make.
  template <class Make>
  using ValueOf = typename detail::TaskOf<std::remove_reference_t<Make>>::type::value_type;

  explicit LoopHandle(const std::shared_ptr<EventLoop>& loop) noexcept : loop_(loop) {}

  /// Starts `make(loop)` or `make()` on the loop's thread. `make` exists as long as the coroutine, and both are
  /// destroyed on that thread.
  /// @param doing begins the error sentence
  /// @param group where the coroutine stays until it ends
  /// @throws Error (closed) if the loop has ended, (cancelled) by an exception; Error (closed) in a forked process
  template <class Make>
  BackgroundTask<ValueOf<Make>> spawn(Make make, std::string_view doing = "starting a coroutine",
                                      std::shared_ptr<SpawnStates> group = {}) {
    auto state = std::make_shared<SpawnStateOf<ValueOf<Make>>>();
    state->make = [&outcome = state->outcome, kept = std::make_shared<Make>(std::move(make))](EventLoop& loop) {
      Task<ValueOf<Make>> task = detail::call_with_loop(*kept, loop);
      return store_outcome(std::move(task), outcome);  // nvcc warns of a frame that holds `kept`
    };
    start(state, std::move(group), doing);
    return {std::move(state), shared_from_this()};
  }

  /// spawn(), and waits for the value.
  /// Blocking: until the coroutine has ended; at the deadline it is cancelled. Either way it is gone when this returns,
  /// so that `make` may capture the caller's locals by reference.
  /// @throws as spawn and BackgroundTask::wait
  template <class Make>
  auto run_blocking(Make&& make, Deadline deadline, std::string_view doing = "running a task") {
    auto task = spawn([&make](EventLoop& loop) { return detail::call_with_loop(make, loop); }, doing);
    return task.wait_or_cancel(deadline, doing);
  }

  /// EventLoop::post; false after the loop's end.
  template <class F>
  bool post(F function) {
    const std::shared_ptr<EventLoop> loop = open_loop();
    return loop && loop->post(std::move(function));
  }

  bool is_of_this_process() const noexcept { return process_.is_current(); }

  /// Whether the caller is the loop's thread, where nothing may block; also while the loop ends.
  bool on_loop_thread() const noexcept { return thread_.load() == std::this_thread::get_id(); }

  /// Rejects calls of this thread, as those of the loop's thread are rejected: spawn, run_blocking and
  /// BackgroundTask::wait throw, and so does require_allowed. Threads: the one, until allow_calls().
  /// @param why the error sentence, which stays valid
  void refuse_calls(const char* why) noexcept {
    why_refused_ = why;
    refused_thread_ = std::this_thread::get_id();
  }
  void allow_calls() noexcept { refused_thread_ = std::thread::id(); }
  /// @throws Error (invalid_argument) on a thread whose calls are rejected
  void require_allowed() const {
    if (refused_thread_.load(std::memory_order_relaxed) == std::this_thread::get_id()) throw_refused();
  }

  /// @throws Error (closed or cancelled) with the reason for which no coroutine starts
  [[noreturn]] void throw_ended(std::string_view doing) const;

  /// For LoopThread: runs the loop in this thread until it is stopped or throws, and closes it.
  void serve(EventLoop& loop) noexcept;

 private:
  void start(const std::shared_ptr<SpawnState>& state, std::shared_ptr<SpawnStates> group, std::string_view doing);
  [[noreturn]] void throw_refused() const;

  std::shared_ptr<EventLoop> open_loop() const noexcept { return process_.is_current() ? loop_.lock() : nullptr; }

  const std::weak_ptr<EventLoop> loop_;
  const OwningProcess process_;
  std::atomic<std::thread::id> thread_{};
  std::atomic<std::thread::id> refused_thread_{};
  const char* why_refused_ = nullptr;  ///< reason for refused_thread_, which alone reads it
  mutable std::mutex mutex_;
  std::string end_reason_;  ///< guarded by mutex_: what ended the loop, if not EventLoop::stop
};

/// LoopHandle::refuse_calls() for the thread that makes it, while it lives.
class RefusedCalls {
 public:
  /// @param why the error sentence, which stays valid
  RefusedCalls(LoopHandle& handle, const char* why) noexcept : handle_(handle), why_(why) {
    handle_.refuse_calls(why_);
  }
  RefusedCalls(const RefusedCalls&) = delete;
  ~RefusedCalls() { handle_.allow_calls(); }

  /// Calls `act`, whose calls are not refused. Threads: any; the others' calls never are.
  template <class F>
  void allow_in(F&& act) const {
    if (thread_ != std::this_thread::get_id()) return act();
    struct Refuse {
      const RefusedCalls& calls;
      ~Refuse() { calls.handle_.refuse_calls(calls.why_); }
    } const refuse_again{*this};
    handle_.allow_calls();
    act();
  }

 private:
  LoopHandle& handle_;
  const char* why_;
  std::thread::id thread_ = std::this_thread::get_id();
};

/// The part of a BackgroundTask that does not depend on its value: compiled once.
class SpawnOwner {
 public:
  SpawnOwner() noexcept = default;
  SpawnOwner(std::shared_ptr<SpawnState> state, std::shared_ptr<LoopHandle> loop) noexcept
      : state_(std::move(state)), loop_(std::move(loop)) {}
  SpawnOwner(SpawnOwner&& other) noexcept = default;
  SpawnOwner& operator=(SpawnOwner&& other) noexcept {
    if (this != &other) {
      cancel();
      state_ = std::move(other.state_);
      loop_ = std::move(other.loop_);
    }
    return *this;
  }
  ~SpawnOwner() { cancel(); }

  /// Whether the coroutine has ended, by itself or cancelled; also true if nothing is owned.
  bool done() const { return state_ == nullptr || state_->gone(); }

  /// Cancels the coroutine, as the destructor does.
  void cancel() noexcept;

 protected:
  /// BackgroundTask::wait without the value. @returns the state that has it
  SpawnState& wait_until_gone(Deadline deadline, std::string_view doing) const;

  /// Cancels the coroutine at the deadline. @returns its state; null if it ended before, or this thread cannot wait
  std::shared_ptr<SpawnState> cancel_at(Deadline deadline);

  [[noreturn]] void throw_ended(std::string_view doing) const { loop_->throw_ended(doing); }

 private:
  std::shared_ptr<SpawnState> state_;
  std::shared_ptr<LoopHandle> loop_;
};

/// Owns a coroutine that runs on the control loop. Destroying the owner cancels the coroutine and destroys its locals.
/// Lifetime: may outlive the loop, and the group of ProcessGroup::spawn; the end of either ends the coroutine.
/// Blocking: its destructor, while another coroutine keeps the loop busy. Threads: one at a time. On the loop's thread
/// nothing blocks: a coroutine that destroys its own owner ends at its next suspension.
/// @ingroup store
template <class T>
class [[nodiscard]] BackgroundTask : public SpawnOwner {
 public:
  using SpawnOwner::SpawnOwner;

  /// The coroutine's value, once. Blocking: until the coroutine ends, at most until the deadline; then it continues.
  /// @param doing begins the error sentences
  /// @throws what the coroutine threw; the job's first cause if it has failed; Error (timeout); Error (closed) if the
  /// rank has left the job or the loop has ended; Error (cancelled) if an exception ended the loop; Error
  /// (invalid_argument) on the loop's thread, or if nothing is owned
  T wait(Deadline deadline, std::string_view doing = "waiting for a coroutine on the control loop") {
    Outcome<T>& outcome = outcome_of(wait_until_gone(deadline, doing));
    if (!outcome.done()) {
      throw_ended(doing);
    }
    return outcome.take();
  }

  /// wait(), but at the deadline the coroutine is cancelled. A value that it has returned meanwhile is not lost.
  T wait_or_cancel(Deadline deadline, std::string_view doing) {
    const std::shared_ptr<SpawnState> cancelled = cancel_at(deadline);
    if (!cancelled) {
      return wait(deadline, doing);
    }
    if (!outcome_of(*cancelled).done()) {
      throw_error(Errc::timeout, "{}: the deadline passed", {doing});
    }
    return outcome_of(*cancelled).take();
  }

 private:
  static Outcome<T>& outcome_of(SpawnState& state) noexcept { return static_cast<SpawnStateOf<T>&>(state).outcome; }
};

/// Owns the loop and runs it until destroyed. The thread blocks all signals, so that it does not affect the program's
/// handlers and signalfds. If a task without a handler throws, the loop ends: every task is cancelled and every later
/// call throws. Threads: run_blocking() from any thread but the loop's, several at once. Destruction, from any other
/// thread, stops the loop and joins the thread.
class LoopThread {
 public:
  /// @throws Error if the system cannot start a thread
  LoopThread();
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;
  ~LoopThread() { end(); }
  /// For post(); its other functions belong to the loop's thread.
  EventLoop& loop() noexcept { return *loop_; }

  /// For objects that may outlive this one.
  const std::shared_ptr<LoopHandle>& handle() const noexcept { return handle_; }

  /// Ends the thread: every task is cancelled, and every later call throws. Blocking. Threads: as the destruction.
  void end() noexcept {
    loop_->stop();
    thread_.join();
  }

  /// LoopHandle::run_blocking.
  template <class Make>
  auto run_blocking(Make&& make, Deadline deadline, std::string_view doing = "running a task") {
    return handle_->run_blocking(make, deadline, doing);
  }

 private:
  const std::shared_ptr<EventLoop> loop_;
  const std::shared_ptr<LoopHandle> handle_;
  JoiningThread thread_;  ///< last: joined before the rest is destroyed
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void SpawnState::end() noexcept {
  unlink();
  task.detach();
  make = nullptr;
  const std::lock_guard lock(mutex_);
  gone_ = true;
  changed_.notify_all();
}

DTRAIN_DEFINED bool SpawnState::wait_until_gone(Deadline deadline) const {
  std::unique_lock lock(mutex_);
  return block_until(changed_, lock, deadline, [this] { return gone_; });
}

DTRAIN_DEFINED void LoopHandle::start(const std::shared_ptr<SpawnState>& state, std::shared_ptr<SpawnStates> group,
                                      std::string_view doing) {
  require_allowed();
  const std::shared_ptr<EventLoop> loop = open_loop();
  // The last copy of `end` is dropped when the coroutine is gone, or when `begin` is dropped without having made a
  // coroutine.
  std::shared_ptr<void> end(nullptr, [state](void*) { state->end(); });
  auto begin = [state, target = loop.get(), group = std::move(group), end = std::move(end)] {
    try {
      Task<void> task = state->cancelled ? Task<void>() : state->make(*target);
      if (state->cancelled) {
        return;
      }
      state->task = target->spawn(std::move(task), {}, [group, end]() mutable { end.reset(); });
      if (group) {
        group->push_back(*state);
      }
    } catch (...) {
      state->error = std::current_exception();
    }
  };
  if (!loop || !loop->post(std::move(begin))) {
    throw_ended(doing);
  }
}

DTRAIN_DEFINED void LoopHandle::throw_refused() const {
  throw Error(Errc::invalid_argument, why_refused_);
}

DTRAIN_DEFINED void LoopHandle::throw_ended(std::string_view doing) const {
  if (!process_.is_current()) {
    throw_error(Errc::closed, "{}: this process was forked from a rank, and is none", {doing});
  }
  if (loop_.expired()) {
    throw_error(Errc::closed, "{}: this rank's process group has been destroyed", {doing});
  }
  const std::lock_guard lock(mutex_);
  if (end_reason_.empty()) {
    throw_error(Errc::closed, "{}: the event loop has ended", {doing});
  }
  throw_error(Errc::cancelled, "{}: the event loop ended because of: {}", {doing, end_reason_});
}

DTRAIN_DEFINED void LoopHandle::serve(EventLoop& loop) noexcept {
  thread_ = std::this_thread::get_id();
  try {
    loop.run();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    end_reason_ = exception_text();
  }
  loop.close();
  thread_ = std::thread::id();
}

DTRAIN_DEFINED void SpawnOwner::cancel() noexcept {
  const std::shared_ptr<SpawnState> state = std::exchange(state_, nullptr);
  const std::shared_ptr<LoopHandle> loop = std::exchange(loop_, nullptr);
  if (!state || !loop->is_of_this_process() || state->gone()) {
    return;
  }
  const auto end = [state] {
    state->cancelled = true;
    state->task.cancel();
  };
  if (loop->on_loop_thread()) {
    return end();
  }
  loop->post(end);  // a loop that has ended has destroyed the coroutine, or will soon
  state->wait_until_gone(Deadline::unbounded("the loop destroys the coroutine in its next turn"));
}

DTRAIN_DEFINED SpawnState& SpawnOwner::wait_until_gone(Deadline deadline, std::string_view doing) const {
  if (!state_ || loop_->on_loop_thread()) {
    throw_error(Errc::invalid_argument, "{}: {}",
                {doing, state_ ? "called on the control thread, where it would wait for itself; co_await the "
                                 "coroutine instead"
                               : "there is none"});
  }
  loop_->require_allowed();
  if (!state_->wait_until_gone(deadline)) {
    throw_error(Errc::timeout, "{}: the deadline passed", {doing});
  }
  if (state_->error) {
    std::rethrow_exception(std::exchange(state_->error, nullptr));
  }
  return *state_;
}

DTRAIN_DEFINED std::shared_ptr<SpawnState> SpawnOwner::cancel_at(Deadline deadline) {
  if (!state_ || loop_->on_loop_thread() || state_->wait_until_gone(deadline)) {
    return nullptr;
  }
  std::shared_ptr<SpawnState> state = state_;
  cancel();
  return state;
}

DTRAIN_DEFINED LoopThread::LoopThread()
    : loop_(std::make_shared<EventLoop>()), handle_(std::make_shared<LoopHandle>(loop_)) {
  thread_ = start_thread("the thread of an event loop", [this] { handle_->serve(*loop_); });
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::async
