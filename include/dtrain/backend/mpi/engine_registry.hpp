#pragma once
/// @file
/// EngineRegistry: the engine of the process.

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include "dtrain/core/block_until.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend::mpi {

/// Holds the engine. A process can start MPI only once, and must not call it after disable(): MPI may hold memory that
/// no longer exists. `E` is the engine. Threads: any.
template <class E>
class EngineRegistry {
 public:
  /// The engine if it still has an owner, otherwise the result of `make()`. Blocking: while another thread makes one.
  /// @throws Error (timeout; unsupported after disable()), exceptions of make()
  template <class Make>
  std::shared_ptr<E> shared_blocking(Make make, Deadline deadline) {
    std::unique_lock lock(mutex_);
    if (!block_until(changed_, lock, deadline, [this] { return !making_; })) {
      throw_error(Errc::timeout, "another thread of this process has not come to an end of starting MPI");
    }
    if (disabled_) {
      throw_error(Errc::unsupported,
                  "an earlier process group of this process ended in a failure, and with it MPI, which cannot be "
                  "started again; end the process, and start the job anew");
    }
    if (std::shared_ptr<E> engine = engine_.lock()) {
      return engine;
    }
    making_ = true;
    lock.unlock();
    std::shared_ptr<E> made;
    std::exception_ptr thrown;
    try {
      made = make();
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    making_ = false;
    engine_ = made;
    changed_.notify_all();
    if (thrown) {
      std::rethrow_exception(thrown);
    }
    return made;
  }

  /// Forbids any further call to MPI in this process.
  void disable() noexcept {
    const std::lock_guard lock(mutex_);
    disabled_ = true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::weak_ptr<E> engine_;
  bool making_ = false;
  bool disabled_ = false;
};

}  // namespace DTRAIN_NAMESPACE::backend::mpi
