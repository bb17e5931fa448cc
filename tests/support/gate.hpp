#pragma once
/// @file
/// Waiting for what another thread does, and holding its work up: never for ever.

#include <atomic>
#include <chrono>
#include <thread>

#include "dtrain/core/deadline.hpp"

namespace support {

/// Blocking. @returns whether `condition()` holds in time
template <class Condition>
bool holds_before(dtrain::Deadline deadline, Condition condition) {
  while (!condition() && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

template <class Condition>
bool holds_soon(Condition condition, std::chrono::nanoseconds patience = std::chrono::seconds(60)) {
  return holds_before(dtrain::Deadline::after(patience), condition);
}

/// What work of a stream waits at until the test lets it go on. Threads: any.
class Gate {
 public:
  explicit Gate(bool is_open = false) : open_(is_open) {}
  void open() { open_ = true; }

  /// Blocking: until it is open; for so long at most that no test on a slow machine takes it for open.
  void pass() noexcept {
    reached_ = true;
    holds_soon([this] { return open_.load(); }, std::chrono::minutes(5));
  }
  /// Blocking. @returns whether work has come to it, in time
  bool is_reached_soon() const {
    return holds_soon([this] { return reached_.load(); });
  }

 private:
  std::atomic<bool> open_;
  std::atomic<bool> reached_{false};
};

}  // namespace support
