#pragma once
/// @file
/// SpawnState: what the owner of a coroutine and the loop that runs it share.

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <type_traits>
#include <utility>

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/core/config.hpp"

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
  /// The coroutine's frame is gone, or was never made: frees the rest, then notifies the owner.
  void end() noexcept;
  bool gone() const {
    const std::lock_guard lock(mutex_);
    return gone_;
  }
  /// Blocking: until the coroutine is destroyed or the deadline passes. @returns whether it is destroyed
  bool wait_until_gone(Deadline deadline) const;

  std::function<Task<void>(EventLoop&)> make;  ///< lives as long as the coroutine that it makes
  TaskHandle task;
  bool cancelled = false;    ///< by its owner, before it began
  std::exception_ptr error;  ///< thrown by `make`, or why another than the owner has cancelled the coroutine

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

}  // namespace DTRAIN_NAMESPACE::async

#if DTRAIN_DEFINITIONS

#include "dtrain/core/block_until.hpp"

namespace DTRAIN_NAMESPACE::async {

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

}  // namespace DTRAIN_NAMESPACE::async

#endif  // DTRAIN_DEFINITIONS
