#pragma once
/// @file
/// when_all(): awaits several tasks at once; the first exception cancels the others. with_deadline(): a task cancelled
/// at a deadline.

#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/async/events.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Runs the tasks interleaved on one loop and returns their values in the given order (Task<void> for void ones). The
/// first exception cancels the other tasks, which are destroyed before it is rethrown; of several exceptions in one
/// turn of the loop, that of the first task in the given order. After a task that fails at its start, later ones do not
/// start.
/// @param deadline when it passes, the tasks are destroyed
/// @throws a task's exception; Error (timeout)
/// @ingroup store
template <class T>
Task<std::conditional_t<std::is_void_v<T>, void, std::vector<std::conditional_t<std::is_void_v<T>, bool, T>>>> when_all(
    EventLoop& loop, std::vector<Task<T>> tasks, Deadline deadline) {
  std::size_t pending = tasks.size();
  ManualResetEvent done(loop);  // all are done, or one has failed
  const auto run_one = [&pending, &done](Task<T> task, Outcome<T>& outcome) -> Task<void> {
    Task<void> stored = store_outcome(std::move(task), outcome);
    co_await std::move(stored);
    --pending;
    if (outcome.failed() || pending == 0) {
      done.set();
    }
  };
  std::vector<Outcome<T>> outcomes(tasks.size());
  {
    std::vector<Task<void>> children;
    children.reserve(tasks.size());
    for (std::size_t i = 0; i < tasks.size() && !done.is_set(); ++i) {
      children.push_back(run_one(std::move(tasks[i]), outcomes[i]));
      children.back().handle().resume();
    }
    if (!tasks.empty() && co_await done.wait(deadline) == WakeReason::timed_out) {
      throw_error(Errc::timeout, "waiting for {} of {} tasks: the deadline passed", {pending, tasks.size()});
    }
  }  // destroys the children that still wait
  for (Outcome<T>& outcome : outcomes) {
    if (outcome.failed()) {
      outcome.take();
    }
  }
  if constexpr (!std::is_void_v<T>) {
    std::vector<T> values;
    values.reserve(outcomes.size());
    for (Outcome<T>& outcome : outcomes) {
      values.push_back(outcome.take());
    }
    co_return std::move(values);
  }
}

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

/// with_deadline() of a type that converts to a Task, as a call of the store does.
/// @ingroup store
template <class Call>
requires(!std::is_same_v<Call, Task<typename Call::value_type>> &&
         std::is_convertible_v<Call, Task<typename Call::value_type>>) auto with_deadline(EventLoop& loop, Call call,
                                                                                          Deadline deadline) {
  return with_deadline(loop, Task<typename Call::value_type>(std::move(call)), deadline);
}

}  // namespace DTRAIN_NAMESPACE::async
