#pragma once
/// @file
/// PostQueue: functions that other threads post to an EventLoop, and the eventfd that wakes it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/descriptor.hpp"

namespace DTRAIN_NAMESPACE::async {

/// A function without parameters or result, move-only ones included.
class PostedFunction {
 public:
  PostedFunction() = default;
  PostedFunction(const PostedFunction&) = delete;
  PostedFunction& operator=(const PostedFunction&) = delete;
  virtual ~PostedFunction() = default;
  virtual void run() = 0;
};

/// Threads: push, wake and close from any thread; the rest from the loop's.
class PostQueue {
 public:
  PostQueue();

  int descriptor() const noexcept { return wakeup_.get(); }

  /// Appends a function. Returns false, with the function destroyed in this thread, once the queue is closed.
  template <class F>
  bool push(F function) {
    struct Holder final : PostedFunction {
      explicit Holder(F&& given) : held(std::move(given)) {}
      void run() override { held(); }
      F held;
    };
    return push_item(new Holder(std::move(function)));
  }

  /// Makes the eventfd readable.
  void wake() noexcept;

  /// Makes the eventfd unreadable and runs the functions pushed so far. An exception of a function leaves at once; the
  /// rest stays for the next call.
  void run_all();

  /// Whether an exception left functions behind.
  bool unfinished() const noexcept { return next_ < taken_.size(); }

  /// Refuses functions from now on and destroys those not yet run.
  void close() noexcept;

 private:
  /// Owns `pushed`, which is a raw pointer so that no unique_ptr is compiled for each F.
  bool push_item(PostedFunction* pushed);

  Descriptor wakeup_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<PostedFunction>> items_;
  std::vector<std::unique_ptr<PostedFunction>> taken_;  ///< by the loop
  std::size_t next_ = 0;                                ///< of taken_: the first that has not run
  bool closed_ = false;
};

}  // namespace DTRAIN_NAMESPACE::async

#if DTRAIN_DEFINITIONS

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::async {

DTRAIN_DEFINED PostQueue::PostQueue() : wakeup_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wakeup_) {
    throw errno_error("creating an eventfd", "raise the limit of open files (ulimit -n)");
  }
}

DTRAIN_DEFINED bool PostQueue::push_item(PostedFunction* pushed) {
  std::unique_ptr<PostedFunction> item(pushed);
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      return false;
    }
    items_.push_back(std::move(item));
    if (items_.size() > 1) {
      return true;  // the thread that pushed the first one wakes the loop
    }
  }
  wake();
  return true;
}

DTRAIN_DEFINED void PostQueue::run_all() {
  std::uint64_t count = 0;
  while (::read(wakeup_.get(), &count, sizeof count) < 0 && errno != EAGAIN) {
    if (errno != EINTR) {
      throw_errno("reading the wake-up descriptor of an event loop");  // else the loop would find it readable for ever
    }
  }
  {
    const std::lock_guard lock(mutex_);
    for (std::unique_ptr<PostedFunction>& item : items_) {
      taken_.push_back(std::move(item));
    }
    items_.clear();
  }
  while (unfinished()) {
    const std::unique_ptr<PostedFunction> item = std::move(taken_[next_++]);
    item->run();
  }
  taken_.clear();
  next_ = 0;
}

DTRAIN_DEFINED void PostQueue::close() noexcept {
  std::vector<std::unique_ptr<PostedFunction>> dropped;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(items_);
  }
  dropped.clear();
  taken_.clear();
  next_ = 0;
}

DTRAIN_DEFINED void PostQueue::wake() noexcept {
  const std::uint64_t one = 1;
  while (::write(wakeup_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

}  // namespace DTRAIN_NAMESPACE::async

#endif  // DTRAIN_DEFINITIONS
