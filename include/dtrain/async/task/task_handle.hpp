#pragma once
/// @file
/// TaskHandle: the owner of a task that an EventLoop runs. EventLoop::spawn() returns it.

#include <exception>
#include <functional>
#include <utility>

#include "dtrain/async/task/task.hpp"
#include "dtrain/async/timer_heap.hpp"
#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::async {

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
  bool owned = true;       ///< by a TaskHandle; otherwise by the loop
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
