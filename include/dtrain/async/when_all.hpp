#pragma once
/// @file
/// when_all: awaits several tasks concurrently. Programs call it in their coroutines.

#include <cstddef>
#include <type_traits>
#include <vector>

#include "dtrain/async/manual_reset_event.hpp"
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

}  // namespace DTRAIN_NAMESPACE::async
