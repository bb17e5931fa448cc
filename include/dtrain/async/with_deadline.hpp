#pragma once
/// @file
/// with_deadline: runs a task that is cancelled at a deadline. Programs call it in their coroutines.

#include <optional>
#include <type_traits>
#include <utility>

#include "dtrain/async/manual_reset_event.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Returns the task's value, or nullopt if the deadline passed first; the task is then destroyed. For Task<void>:
/// whether it ended in time. A task that ends in the same turn as the deadline has ended in time.
/// @throws the task's exception
/// @ingroup store
template <class T>
Task<std::conditional_t<std::is_void_v<T>, bool, std::optional<std::conditional_t<std::is_void_v<T>, bool, T>>>>
with_deadline(EventLoop& loop, Task<T> task, Deadline deadline) {
  Outcome<T> outcome;
  ManualResetEvent done(loop);
  const auto store_and_set = [&outcome, &done](Task<T> stored) -> Task<void> {
    Task<void> storing = store_outcome(std::move(stored), outcome);
    co_await std::move(storing);
    done.set();
  };
  {
    const Task<void> child = store_and_set(std::move(task));
    child.handle().resume();
    co_await done.wait(deadline);
  }  // destroys the child if it still waits
  if constexpr (std::is_void_v<T>) {
    const bool in_time = outcome.done();
    outcome.take();
    co_return in_time;
  } else {
    if (!outcome.done()) {
      co_return std::nullopt;
    }
    co_return std::optional<T>(outcome.take());
  }
}

/// with_deadline() of a type that converts to a Task, such as a call of the store.
/// @ingroup store
template <class Call>
requires(!std::is_same_v<Call, Task<typename Call::value_type>> &&
         std::is_convertible_v<Call, Task<typename Call::value_type>>) auto with_deadline(EventLoop& loop, Call call,
                                                                                          Deadline deadline) {
  return with_deadline(loop, Task<typename Call::value_type>(std::move(call)), deadline);
}

}  // namespace DTRAIN_NAMESPACE::async
