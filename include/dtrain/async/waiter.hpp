#pragma once
/// @file
/// Waiter: a suspended coroutine of an EventLoop, linked into one list and into the timers.

#include <coroutine>
#include <cstdint>

#include "dtrain/async/intrusive_list.hpp"
#include "dtrain/async/timer_heap.hpp"
#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::async {

class TaskRecord;

/// Why a suspended coroutine was resumed; `ready` wins if both hold.
enum class WakeReason : std::uint8_t { ready = 1, timed_out };

/// Base of the awaiters. It is in the coroutine's frame, so suspending allocates nothing (the timers' array may grow).
/// An awaiter calls Scheduler::remove in its destructor.
class Waiter : public ListNode, public TimerNode {
 public:
  DTRAIN_NOT_INLINED Waiter() noexcept = default;

  std::coroutine_handle<> coroutine;
  TaskRecord* record = nullptr;  ///< the spawned task that the coroutine belongs to
  int descriptor = -1;           ///< the descriptor that it waits for, if any
  WakeReason outcome = WakeReason::ready;
};

}  // namespace DTRAIN_NAMESPACE::async
