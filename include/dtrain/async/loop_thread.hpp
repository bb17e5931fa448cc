#pragma once
/// @file
/// async::LoopThread: an EventLoop and the thread that runs it. ControlPlane and FormationClient own one.

#include <memory>
#include <string_view>

#include "dtrain/async/loop_handle.hpp"
#include "dtrain/async/thread.hpp"
#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Owns the loop and runs it until destroyed. The thread blocks all signals, so that it does not affect the program's
/// handlers and signalfds. If a task without a handler throws, the loop ends: every task is cancelled and every later
/// call throws. Threads: run_blocking() from any thread but the loop's, several at once. Destruction, from any other
/// thread, stops the loop and joins the thread.
class LoopThread {
 public:
  /// @throws Error if the system cannot start a thread
  LoopThread();
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;
  ~LoopThread();

  /// For post(); its other functions belong to the loop's thread.
  EventLoop& loop() noexcept { return *loop_; }

  /// For objects that may outlive this one.
  const std::shared_ptr<LoopHandle>& handle() const noexcept { return handle_; }

  /// LoopHandle::run_blocking.
  template <class Make>
  auto run_blocking(Make&& make, Deadline deadline, std::string_view doing = "running a task") {
    return handle_->run_blocking(make, deadline, doing);
  }

 private:
  const std::shared_ptr<EventLoop> loop_;
  const std::shared_ptr<LoopHandle> handle_;
  JoiningThread thread_;  ///< last: joined before the rest is destroyed
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED LoopThread::LoopThread()
    : loop_(std::make_shared<EventLoop>()), handle_(std::make_shared<LoopHandle>(loop_)) {
  thread_ = start_thread("the thread of an event loop", [this] { handle_->serve(*loop_); });
}

DTRAIN_DEFINED LoopThread::~LoopThread() {
  loop_->stop();
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::async
