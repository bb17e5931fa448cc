#pragma once
/// @file
/// async::LoopThread: an EventLoop with a thread of its own, and blocking calls to it.

#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "dtrain/async/blocking_call.hpp"
#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/async/start_thread.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Owns the loop and runs it until destroyed. The thread blocks all signals, so that it does not affect the program's
/// handlers and signalfds. If a task without a handler throws, the loop ends: every task is cancelled and every later
/// call throws. Threads: run_blocking() from any thread but the loop's, several at once. Destruction, from any other
/// thread, stops the loop and joins the thread.
class LoopThread {
 public:
  /// @throws Error if the system cannot start a thread
  LoopThread() {
    thread_ = start_thread("the thread of an event loop", [this] { serve(); });
  }
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;
  ~LoopThread() { loop_.stop(); }

  /// For post(); its other functions belong to the loop's thread.
  EventLoop& loop() noexcept { return loop_; }

  /// Whether the caller is the loop's thread, also while the loop ends. Threads: any.
  bool is_current() const noexcept { return std::this_thread::get_id() == thread_.get_id(); }

  /// Runs `co_await make(loop)` on the loop's thread and returns its value here.
  /// Blocking: until the task has ended. At the deadline the task is cancelled on the loop's thread. This function
  /// returns only afterwards, so `make` may capture the caller's locals by reference.
  /// @param make callable with EventLoop& that returns a Task; a coroutine lambda with captures works: it stays alive
  /// @param doing begins the error message of a timeout
  /// @throws the task's exception; Error (timeout); Error (cancelled) if the loop has ended; Error (invalid_argument)
  /// on the loop's own thread, which would wait for itself
  template <class Make>
  auto run_blocking(Make&& make, Deadline deadline, std::string_view doing = "running a task") {
    using T = typename std::remove_cvref_t<std::invoke_result_t<Make&, EventLoop&>>::value_type;
    if (loop_.on_loop_thread()) {
      throw Error(Errc::invalid_argument, std::string(doing) + ": called from the event loop's own thread, where it " +
                                              "would wait for itself; co_await the task instead");
    }
    BlockingCall<T> call;
    call.start(loop_, make);
    if (!call.wait_until(deadline)) {
      call.cancel(loop_);
    }
    if (!call.done()) {
      throw_unfinished(deadline, doing);
    }
    return call.take();
  }

 private:
  void serve() noexcept {
    try {
      loop_.run();
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      end_reason_ = error.what();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      end_reason_ = "an exception that is not a std::exception";
    }
    loop_.close();
  }

  [[noreturn]] void throw_unfinished(Deadline deadline, std::string_view doing) {
    const std::lock_guard lock(mutex_);
    if (!end_reason_.empty()) {
      throw Error(Errc::cancelled, std::string(doing) + ": the event loop ended because of: " + end_reason_);
    }
    if (deadline.passed()) {
      throw Error(Errc::timeout, std::string(doing) + ": the deadline passed");
    }
    throw Error(Errc::cancelled, std::string(doing) + ": the event loop has ended");
  }

  EventLoop loop_;
  std::mutex mutex_;
  std::string end_reason_;  ///< guarded by mutex_: what ended the loop, if not stop()
  std::jthread thread_;     ///< last: joined before the rest is destroyed
};

}  // namespace DTRAIN_NAMESPACE::async
