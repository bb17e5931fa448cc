#pragma once
/// @file
/// The gate of one ncclComm_t, through which every call to NCCL on it goes, one at a time.

#include <mutex>
#include <utility>

#include "dtrain/backend/nccl/version.hpp"
#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// Holds a communicator, which NCCL lets nobody use from two threads, abort included. Threads: any.
/// Its end leaves a communicator that nobody took to the end of the process.
class Gate {
 public:
  /// A turn at the gate.
  class Turn {
   public:
    /// Null before there is one, and once it was taken.
    ncclComm_t communicator() const noexcept { return gate_->communicator_; }
    bool is_granted() const noexcept { return lock_.owns_lock(); }

    /// For a while others may enter; what they do to the communicator is seen after enter().
    void leave() { lock_.unlock(); }
    void enter() { lock_.lock(); }

   private:
    friend class Gate;
    Turn(Gate& gate, std::unique_lock<std::mutex> lock) noexcept : gate_(&gate), lock_(std::move(lock)) {}

    Gate* gate_;
    std::unique_lock<std::mutex> lock_;
  };

  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// Blocking: while another thread has its turn.
  [[nodiscard]] Turn enter() { return {*this, std::unique_lock(mutex_)}; }

  /// The turn may not be granted.
  [[nodiscard]] Turn try_enter() { return {*this, std::unique_lock(mutex_, std::try_to_lock)}; }

  void adopt(const Turn& /*turn*/, ncclComm_t communicator) noexcept { communicator_ = communicator; }

  /// For whoever ends it, which may wait for other ranks and so is done without a turn: nobody else finds it any more.
  /// @returns null where there is none
  [[nodiscard]] ncclComm_t take(const Turn& /*turn*/) noexcept { return std::exchange(communicator_, nullptr); }

 private:
  std::mutex mutex_;
  ncclComm_t communicator_ = nullptr;
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
