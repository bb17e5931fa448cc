#pragma once
/// @file
/// EngineRegistry: the process-wide engine that owns MPI.

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include "dtrain/core/block_until.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"

namespace DTRAIN_NAMESPACE::backend::mpi {

/// MPI exists once in a process, can be started once, and is not to be called again once it is disabled: it may hold
/// memory that is no longer there. `E` is the engine. Threads: any.
template <class E>
class EngineRegistry {
 public:
  /// The engine that somebody owns, else what `make()` gives. Blocking: while another thread makes one.
  /// @throws Error (timeout; unsupported where MPI was disabled), what make() throws
  template <class Make>
  std::shared_ptr<E> shared_blocking(Make make, Deadline deadline) {
    std::unique_lock lock(mutex_);
    if (!block_until(changed_, lock, deadline, [this] { return !making_; })) {
      throw Error(Errc::timeout, "another thread of this process has not come to an end of starting MPI");
    }
    if (disabled_) {
      throw Error(Errc::unsupported,
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

  /// MPI is not to be called again.
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
