#pragma once
/// @file
/// Spawned: the owner of a task that an EventLoop runs.

#include <exception>
#include <functional>
#include <utility>

#include "dtrain/async/task.hpp"
#include "dtrain/async/waiter.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Called on the loop's thread with what left a spawned task.
using ExceptionHandler = std::function<void(std::exception_ptr)>;

/// Called on the loop's thread once a spawned task's frame is destroyed, however it ended. It must not throw.
using GoneHandler = std::function<void()>;

/// The loop's record of a spawned task.
class TaskRoot : public ListNode {
 public:
  TaskRoot(Task<void> coroutine, ExceptionHandler handler, GoneHandler gone_handler)
      : task(std::move(coroutine)), on_exception(std::move(handler)), on_gone(std::move(gone_handler)) {}

  /// Destroys the coroutine, then the record if nobody owns it, then calls on_gone.
  void end() noexcept {
    unlink();
    start.unlink();
    ending = true;
    task.destroy();
    ending = false;
    gone = true;
    const GoneHandler handler = std::move(on_gone);
    if (!owned) {
      delete this;
    }
    if (handler) {
      handler();
    }
  }

  Task<void> task;
  ExceptionHandler on_exception;
  GoneHandler on_gone;
  Waiter start;
  bool gone = false;       ///< its frame has been destroyed
  bool running = false;    ///< its own code is what runs now
  bool owned = true;       ///< by a Spawned; otherwise by the loop
  bool ending = false;     ///< its frame is being destroyed
  bool abandoned = false;  ///< its Spawned was destroyed by the task itself
};

/// Owns a spawned task: destroying it cancels the task, which is then gone, with all its locals. Where the task itself
/// destroys its owner (a session that takes itself out of the map of sessions), it runs on to its next suspension and
/// is destroyed there.
/// Lifetime: may outlive the loop; the loop's end has cancelled the task.
/// Threads: the loop's thread, or any while no thread runs the loop.
class Spawned {
 public:
  Spawned() noexcept = default;
  explicit Spawned(TaskRoot* root) noexcept : root_(root) {}
  Spawned(Spawned&& other) noexcept : root_(std::exchange(other.root_, nullptr)) {}
  Spawned& operator=(Spawned&& other) noexcept {
    if (this != &other) {
      cancel();
      root_ = std::exchange(other.root_, nullptr);
    }
    return *this;
  }
  ~Spawned() { cancel(); }

  /// Whether the task has ended; also true where nothing is owned.
  bool done() const noexcept { return root_ == nullptr || root_->gone; }

  /// Destroys the task now; no effect on one that is done.
  void cancel() noexcept {
    TaskRoot* root = std::exchange(root_, nullptr);
    if (root == nullptr) {
      return;
    }
    if (root->gone) {
      delete root;
      return;
    }
    root->owned = false;
    if (root->ending || root->running) {
      root->abandoned = true;  // the task itself is the caller; the scheduler ends it when it suspends
    } else {
      root->end();
    }
  }

  /// Gives the task to the loop, which runs it to its end or to the loop's.
  void detach() noexcept {
    if (TaskRoot* root = std::exchange(root_, nullptr)) {
      if (root->gone) {
        delete root;
      } else {
        root->owned = false;
      }
    }
  }

 private:
  TaskRoot* root_ = nullptr;
};

}  // namespace DTRAIN_NAMESPACE::async
