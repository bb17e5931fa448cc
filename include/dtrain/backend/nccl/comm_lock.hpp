#pragma once
/// @file
/// CommLock: the lock of one ncclComm_t, held in every call to NCCL on it.

#include <mutex>
#include <utility>

#include "dtrain/backend/nccl/library.hpp"
#include "dtrain/core/config.hpp"

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

  /// For the thread that ends the communicator without the lock, because ending may wait for other ranks. No other
  /// thread gets the communicator afterwards. @returns null if there is none
  [[nodiscard]] ncclComm_t take(const Guard& /*guard*/) noexcept { return std::exchange(communicator_, nullptr); }

 private:
  std::mutex mutex_;
  ncclComm_t communicator_ = nullptr;
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
