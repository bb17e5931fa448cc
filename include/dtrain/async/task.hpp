#pragma once
/// @file
/// async::Task: a coroutine that starts when it is awaited and is cancelled by destroying it. TaskHandle: owner of one
/// that a loop runs.

#include <coroutine>
#include <exception>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include "dtrain/async/timer_heap.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::async {

template <class T>
class Task;

namespace detail {

/// Common part of all Task promises: nothing runs before the first await; completion resumes the awaiting coroutine.
class TaskPromiseBase {
 public:
  struct FinalAwaiter {
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> finished) const noexcept {
      const std::coroutine_handle<> parent = finished.promise().continuation;
      return parent ? parent : std::noop_coroutine();
    }
    void await_resume() const noexcept {}
  };

  std::suspend_always initial_suspend() const noexcept { return {}; }
  FinalAwaiter final_suspend() const noexcept { return {}; }
  DTRAIN_NOT_INLINED void unhandled_exception() noexcept { exception = std::current_exception(); }

  /// Runs `child`, the coroutine of `promise`, which is null if there is none. @returns whether `parent` is to wait
  DTRAIN_NOT_INLINED static bool start(std::coroutine_handle<> child, TaskPromiseBase* promise,
                                       std::coroutine_handle<> parent) {
    if (promise == nullptr) {
      throw_error(Errc::invalid_argument, "a task was awaited twice, or after it was moved from");
    }
    child.resume();
    if (child.done()) {
      return false;
    }
    promise->continuation = parent;
    return true;
  }

  std::coroutine_handle<> continuation;
  std::exception_ptr exception;

 protected:
  DTRAIN_NOT_INLINED void rethrow_if_failed() const {
    if (exception) {
      std::rethrow_exception(exception);
    }
  }
};

template <class T>
class TaskPromise : public TaskPromiseBase {
 public:
  Task<T> get_return_object() noexcept { return Task<T>(std::coroutine_handle<TaskPromise>::from_promise(*this)); }
  void return_value(T&& result) { value_.emplace(std::move(result)); }
  void return_value(const T& result) { value_.emplace(result); }
  T take() {
    rethrow_if_failed();
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
};

template <>
class TaskPromise<void> : public TaskPromiseBase {
 public:
  Task<void> get_return_object() noexcept;
  void return_void() const noexcept {}
  void take() const { rethrow_if_failed(); }
};

}  // namespace detail

/// A coroutine, which starts when it is awaited: `const T value = co_await std::move(task);`. T is void or a value,
/// possibly move-only. The await rethrows an exception of the coroutine.
///
/// Cancellation is destruction. Destroying a suspended Task destroys its frame with all locals, hence the tasks it
/// awaits; every awaiter of this library removes itself from the loop in its destructor. A coroutine therefore cleans
/// up in destructors, and gets no other notice of its cancellation. Code that a Task runs must not destroy that Task
/// (TaskHandle allows it, by destroying it later).
///
/// A child that completes without suspending returns to its parent like a function: a loop of a million such awaits
/// needs no stack, with any compiler and flags. Tasks that await each other in depth n need n stack frames.
///
/// Return a local that cannot be copied by `co_return std::move(local);`: nvcc does not move it implicitly.
///
/// Lifetime: a coroutine's reference parameters, and the captures of a coroutine lambda, outlive the Task. Threads: a
/// Task belongs to one thread (of its EventLoop) from its first resumption to its destruction.
/// @ingroup store
template <class T = void>
class [[nodiscard]] Task {
  static_assert(!std::is_reference_v<T>, "dtrain: a Task returns a value; return a pointer instead of a reference");

 public:
  using promise_type = detail::TaskPromise<T>;
  using value_type = T;

  Task() noexcept = default;
  Task(Task&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      destroy();
      frame_ = std::exchange(other.frame_, nullptr);
    }
    return *this;
  }
  ~Task() { destroy(); }

  /// Cancels and frees the coroutine now.
  DTRAIN_NOT_INLINED void destroy() noexcept {
    if (frame_) {
      std::exchange(frame_, nullptr).destroy();
    }
  }

  explicit operator bool() const noexcept { return frame_ != nullptr; }

  /// Whether the coroutine has returned or thrown.
  bool done() const noexcept { return frame_ && frame_.done(); }

  /// The coroutine, for code that resumes a task without awaiting it.
  std::coroutine_handle<> handle() const noexcept { return frame_; }

  /// Returns the result of a task that is done, and frees the coroutine. @throws the coroutine's exception
  DTRAIN_NOT_INLINED T take() {
    const Task finished(std::move(*this));
    return finished.frame_.promise().take();
  }

  /// Runs the child inside await_suspend and suspends the parent only if the child did not finish at once.
  class Awaiter {
   public:
    explicit Awaiter(Task& task) noexcept : task_(task) {}

    bool await_ready() const noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> parent) {
      const std::coroutine_handle<promise_type> child = task_.frame_;
      return detail::TaskPromiseBase::start(child, child ? &child.promise() : nullptr, parent);
    }
    T await_resume() { return task_.take(); }

   private:
    Task& task_;
  };
  Awaiter operator co_await() && noexcept { return Awaiter(*this); }

 private:
  friend promise_type;
  explicit Task(std::coroutine_handle<promise_type> frame) noexcept : frame_(frame) {}

  std::coroutine_handle<promise_type> frame_;
};

inline Task<void> detail::TaskPromise<void>::get_return_object() noexcept {
  return Task<void>(std::coroutine_handle<TaskPromise>::from_promise(*this));
}

/// Awaiter that owns its task, for the operator co_await of other types. Starts the task when it is awaited.
/// Destroying it cancels the task. Not movable. Threads: as Task.
template <class T>
class OwnedTaskAwaiter {
 public:
  explicit OwnedTaskAwaiter(Task<T> task) noexcept : task_(std::move(task)), inner_(task_) {}
  OwnedTaskAwaiter(const OwnedTaskAwaiter&) = delete;
  OwnedTaskAwaiter& operator=(const OwnedTaskAwaiter&) = delete;

  bool await_ready() const noexcept { return inner_.await_ready(); }
  bool await_suspend(std::coroutine_handle<> parent) { return inner_.await_suspend(parent); }
  T await_resume() { return inner_.await_resume(); }

 private:
  Task<T> task_;
  typename Task<T>::Awaiter inner_;
};

/// The stored value or exception of a task. Empty until store_outcome has run.
template <class T>
class Outcome {
 public:
  bool done() const noexcept { return value_.has_value() || exception_ != nullptr; }
  bool failed() const noexcept { return exception_ != nullptr; }

  /// @param value none for void
  template <class... Value>
  void succeed(Value&&... value) {
    value_.emplace(std::forward<Value>(value)...);
  }
  void fail(std::exception_ptr exception) noexcept { exception_ = std::move(exception); }

  /// The value, once. @throws the task's exception
  T take() {
    if (exception_) {
      std::rethrow_exception(std::exchange(exception_, nullptr));
    }
    if constexpr (!std::is_void_v<T>) {
      return std::move(*value_);
    }
  }

 private:
  std::optional<std::conditional_t<std::is_void_v<T>, bool, T>> value_;
  std::exception_ptr exception_;
};

/// Runs `task` and stores its value or exception, after destroying the task's frame. Lifetime: `outcome` outlives it.
template <class T>
Task<void> store_outcome(Task<T> task, Outcome<T>& outcome) {
  try {
    if constexpr (std::is_void_v<T>) {
      co_await std::move(task);
      outcome.succeed();
    } else {
      T value = co_await std::move(task);
      outcome.succeed(std::move(value));
    }
  } catch (...) {
    outcome.fail(std::current_exception());
  }
}

/// Called on the loop's thread with an exception that left a spawned task.
using ExceptionHandler = std::function<void(std::exception_ptr)>;

/// Called on the loop's thread once a spawned task's frame is destroyed, however the task ended. It must not throw.
using DestroyedHandler = std::function<void()>;

/// The loop's record of a spawned task.
class TaskRecord : public ListNode {
 public:
  TaskRecord(Task<void> coroutine, ExceptionHandler handler, DestroyedHandler destroyed_handler)
      : task(std::move(coroutine)), on_exception(std::move(handler)), on_destroyed(std::move(destroyed_handler)) {}

  /// Destroys the coroutine, then the record if it has no owner, then calls on_destroyed.
  void end() noexcept;

  Task<void> task;
  ExceptionHandler on_exception;
  DestroyedHandler on_destroyed;
  Waiter start;
  bool destroyed = false;  ///< its frame has been destroyed
  bool busy = false;       ///< its coroutine is being resumed, or its frame destroyed
  bool owned = true;       ///< a TaskHandle owns it; otherwise the loop
  bool abandoned = false;  ///< its TaskHandle was destroyed by the task itself
};

/// Owns a spawned task; destruction cancels the task and destroys it with all its locals. A task that destroys its own
/// handle runs on to its next suspension and is destroyed there. Example: a session removes itself from the map of
/// sessions. Lifetime: may outlive the loop, whose destruction cancels the task. Threads: the loop's, or any while no
/// thread runs the loop.
class TaskHandle {
 public:
  TaskHandle() noexcept = default;
  explicit TaskHandle(TaskRecord* record) noexcept : record_(record) {}
  TaskHandle(TaskHandle&& other) noexcept : record_(std::exchange(other.record_, nullptr)) {}
  TaskHandle& operator=(TaskHandle&& other) noexcept {
    if (this != &other) {
      cancel();
      record_ = std::exchange(other.record_, nullptr);
    }
    return *this;
  }
  ~TaskHandle() { cancel(); }

  /// Whether the task has ended; true for an empty handle.
  bool done() const noexcept { return record_ == nullptr || record_->destroyed; }

  /// Destroys the task now; no effect on one that is done.
  void cancel() noexcept;

  /// Releases the task to the loop, which owns it from then on.
  void detach() noexcept;

 private:
  TaskRecord* record_ = nullptr;
};

#if DTRAIN_DEFINITIONS

DTRAIN_NOT_INLINED DTRAIN_DEFINED void TaskRecord::end() noexcept {
  unlink();
  start.unlink();
  busy = true;
  task.destroy();
  busy = false;
  destroyed = true;
  const DestroyedHandler handler = std::move(on_destroyed);
  if (!owned) {
    delete this;
  }
  if (handler) {
    handler();
  }
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void TaskHandle::cancel() noexcept {
  TaskRecord* record = std::exchange(record_, nullptr);
  if (record == nullptr) {
    return;
  }
  if (record->destroyed) {
    delete record;
    return;
  }
  record->owned = false;
  if (record->busy) {
    record->abandoned = true;  // the task itself is the caller; the scheduler ends it when it suspends
  } else {
    record->end();
  }
}

DTRAIN_DEFINED void TaskHandle::detach() noexcept {
  if (TaskRecord* record = std::exchange(record_, nullptr)) {
    if (record->destroyed) {
      delete record;
    } else {
      record->owned = false;
    }
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::async
