#pragma once
/// @file
/// Outcome: the stored value or exception of a task.

#include <exception>
#include <optional>
#include <utility>

#include "dtrain/async/task/task.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Empty until store_outcome has run.
template <class T>
class Outcome {
 public:
  bool done() const noexcept { return value_.has_value() || exception_ != nullptr; }
  bool failed() const noexcept { return exception_ != nullptr; }
  void succeed(T value) { value_.emplace(std::move(value)); }
  void fail(std::exception_ptr exception) noexcept { exception_ = std::move(exception); }

  /// The value, once. @throws the task's exception
  T take() {
    if (exception_) {
      std::rethrow_exception(std::exchange(exception_, nullptr));
    }
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
  std::exception_ptr exception_;
};

template <>
class Outcome<void> {
 public:
  bool done() const noexcept { return succeeded_ || exception_ != nullptr; }
  bool failed() const noexcept { return exception_ != nullptr; }
  void succeed() noexcept { succeeded_ = true; }
  void fail(std::exception_ptr exception) noexcept { exception_ = std::move(exception); }
  void take() {
    if (exception_) {
      std::rethrow_exception(std::exchange(exception_, nullptr));
    }
  }

 private:
  bool succeeded_ = false;
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

}  // namespace DTRAIN_NAMESPACE::async
