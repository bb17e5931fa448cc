#pragma once
/// @file
/// async::JoiningThread: a std::thread that its destructor joins.

#include <thread>
#include <utility>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::async {

/// std::jthread without a stop token: libc++ has std::jthread since version 18, and only as an experimental part before
/// version 20. Destruction and assignment to it block until the thread has ended; the owner makes the thread end.
class JoiningThread {
 public:
  JoiningThread() noexcept = default;
  explicit JoiningThread(std::thread thread) noexcept : thread_(std::move(thread)) {}
  JoiningThread(JoiningThread&&) noexcept = default;
  JoiningThread& operator=(JoiningThread&& other) noexcept {
    std::thread next = std::move(other.thread_);
    join();
    thread_ = std::move(next);
    return *this;
  }
  ~JoiningThread() { join(); }

  /// Ends the ownership: the thread runs on by itself.
  void detach() { thread_.detach(); }

  /// Blocking: until the thread has ended. Does nothing if there is none.
  void join() noexcept {
    if (thread_.joinable()) {
      thread_.join();
    }
  }

 private:
  std::thread thread_;
};

}  // namespace DTRAIN_NAMESPACE::async
