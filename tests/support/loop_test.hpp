#pragma once
/// @file
/// Coroutines of a test on an EventLoop.

#include <chrono>

#include "dtrain/async/loop/event_loop.hpp"

namespace loop_test {

/// For what comes at once.
inline dtrain::Deadline soon() {
  return dtrain::Deadline::after(std::chrono::seconds(60));
}

/// Blocking: until the task that `body()` returns has ended. @throws what it throws, and Error at the deadline
template <class Body>
void run(dtrain::async::EventLoop& loop, Body body) {
  loop.run_until(body(), soon());
}

}  // namespace loop_test
