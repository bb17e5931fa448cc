#pragma once
/// @file
/// A suspended coroutine's place in an EventLoop: in one list, and in the timers.

#include <coroutine>
#include <cstdint>

#include "dtrain/async/intrusive_list.hpp"
#include "dtrain/async/ready.hpp"
#include "dtrain/async/timer_heap.hpp"

namespace DTRAIN_NAMESPACE::async {

class TaskRoot;

/// The base of the awaiters. It lives in the coroutine's frame, so suspending allocates nothing (the timers' array may
/// grow). An awaiter calls Scheduler::leave in its destructor.
class Waiter : public ListNode, public TimerNode {
 public:
  std::coroutine_handle<> coroutine;
  TaskRoot* root = nullptr;  ///< the spawned task that the coroutine belongs to
  int descriptor = -1;       ///< the descriptor that it waits for, if any
  Ready outcome = Ready::ready;
};

}  // namespace DTRAIN_NAMESPACE::async
