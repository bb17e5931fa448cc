#pragma once
/// @file
/// OwnedTaskAwaiter: awaiter that owns its task, for the operator co_await of other types.

#include <coroutine>
#include <utility>

#include "dtrain/async/task/task.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Starts the task when it is awaited. Destroying it cancels the task. Pinned. Threads: as Task.
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

}  // namespace DTRAIN_NAMESPACE::async
