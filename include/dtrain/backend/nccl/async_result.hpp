#pragma once
/// @file
/// Asynchronous result of a nonblocking NCCL call, which finishes in threads of NCCL's own: Channel, Watchdog and
/// init.hpp wait for it. CommLock: the lock of one ncclComm_t, held in every call to NCCL on it.

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "dtrain/backend/nccl/library.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// Holds a communicator. NCCL forbids calls on it from two threads at once, aborts included. Threads: any.
/// A communicator that is never taken stays until the process ends.
class CommLock {
 public:
  /// Holds the lock.
  class Guard {
   public:
    /// Null before adopt() and after take().
    ncclComm_t communicator() const noexcept { return lock_owner_->communicator_; }
    bool is_granted() const noexcept { return lock_.owns_lock(); }

    /// Between unlock() and lock() other threads may call NCCL; later calls see their changes.
    void unlock() { lock_.unlock(); }
    void lock() { lock_.lock(); }

   private:
    friend class CommLock;
    Guard(CommLock& owner, std::unique_lock<std::mutex> lock) noexcept : lock_owner_(&owner), lock_(std::move(lock)) {}

    CommLock* lock_owner_;
    std::unique_lock<std::mutex> lock_;
  };

  CommLock() = default;
  CommLock(const CommLock&) = delete;
  CommLock& operator=(const CommLock&) = delete;

  /// Blocking: while another thread holds it.
  [[nodiscard]] Guard lock() { return {*this, std::unique_lock(mutex_)}; }

  /// The Guard may not be granted.
  [[nodiscard]] Guard try_lock() { return {*this, std::unique_lock(mutex_, std::try_to_lock)}; }

  void adopt(const Guard& /*guard*/, ncclComm_t communicator) noexcept { communicator_ = communicator; }

  /// For the thread that ends the communicator without the lock, because ending may wait for other ranks. Later calls
  /// of take() and communicator() give null. @returns null if there is no communicator
  [[nodiscard]] ncclComm_t take(const Guard& /*guard*/) noexcept { return std::exchange(communicator_, nullptr); }

 private:
  std::mutex mutex_;
  ncclComm_t communicator_ = nullptr;
};

/// NCCL's asynchronous state: an error found in its own threads puts the communicator out of service.
inline ncclResult_t state_of(const CommLock::Guard& held) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t code = ncclCommGetAsyncError(held.communicator(), &state);
  return code != ncclSuccess ? code : state;
}

/// Waits for a call that returned `code`. Also queries the communicator after ncclSuccess, which ncclCommSplit and,
/// from 2.28 on, ncclCommWindowRegister return while they still run (src/init.cc, src/dev_runtime.cc). Until the call
/// has ended, no thread makes another call or enqueues CUDA work on its stream. Blocking: launching an operation takes
/// tens of microseconds, so the lock is kept for 300; after that it is released between queries, for aborts.
/// @param give_up is called without the lock
/// @returns the call's result: ncclInProgress if the deadline passed or the wait was given up
template <class GiveUp>
ncclResult_t wait_for_result_blocking(CommLock::Guard& held, ncclResult_t code, Deadline deadline, GiveUp give_up) {
  constexpr std::chrono::microseconds longest_sleep{2000};
  constexpr std::chrono::microseconds kept{300};
  const auto began = Deadline::Clock::now();
  std::chrono::microseconds sleep{20};
  if (code == ncclSuccess && held.communicator() != nullptr) {
    code = state_of(held);
  }
  for (; code == ncclInProgress; code = state_of(held)) {
    if (Deadline::Clock::now() - began < kept) {
      std::this_thread::yield();
      continue;
    }
    held.unlock();
    const bool gives_up = give_up();
    if (!gives_up) {
      std::this_thread::sleep_for(sleep);
      sleep = std::min(2 * sleep, longest_sleep);
    }
    held.lock();
    if (gives_up || held.communicator() == nullptr) {
      return ncclInProgress;
    }
    if (deadline.passed()) {
      return state_of(held);
    }
  }
  return code;
}

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
