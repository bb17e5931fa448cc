#pragma once
/// @file
/// LaunchOrder of a device: one order for all its NCCL channels, which could deadlock otherwise, before NCCL 2.26.

#include <array>
#include <condition_variable>
#include <cstddef>
#include <mutex>

#include "dtrain/backend/nccl/library.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// Makes each operation wait for the one enqueued before it on any channel of the device. Otherwise two devices may run
/// two channels' operations in different orders and wait for each other for ever, although all ranks enqueue in one
/// order (NCCL's user guide, "Using multiple NCCL communicators concurrently"). From 2.26 on the implicit launch order
/// does this inside NCCL. Operations of a captured graph are not ordered: a graph cannot
/// wait for events outside it.
class LaunchOrder {
 public:
  /// The device's order; null if the library orders by itself. Lives as long as the process, because channels of all
  /// groups share it.
  static LaunchOrder* of_device(int device) noexcept {
    static auto& all = *new std::array<LaunchOrder, max_devices>;  // never destroyed: threads may outlive main()
    const auto index = static_cast<std::size_t>(device);
    return library_version() >= first_that_orders || index >= all.size() ? nullptr : &all[index];
  }

  /// One operation, from before to after it is enqueued.
  class Turn {
   public:
    /// Makes `stream` wait for the operation before. Blocking: while another thread enqueues one, until `deadline`.
    /// @throws Error (timeout, cuda)
    Turn(LaunchOrder& order, stream::cuda::StreamRef stream, Deadline deadline) : exclusive_(order, deadline) {
      stream.wait(order.last_);
    }
    /// The operation is enqueued. @throws Error (cuda)
    void end(stream::cuda::StreamRef stream) { stream.record(exclusive_.order.last_); }

   private:
    /// At most one thread has an order.
    struct Exclusive {
      Exclusive(LaunchOrder& taken, Deadline deadline) : order(taken) {
        std::unique_lock lock(order.mutex_);
        if (!block_until(order.released_, lock, deadline, [this] { return !order.is_taken_; })) {
          throw_error(Errc::timeout,
                      "an operation of another channel of the device was still being enqueued at the timeout; NCCL "
                      "before 2.26 needs one order of all channels' operations, the same on all ranks");
        }
        order.is_taken_ = true;
      }
      Exclusive(const Exclusive&) = delete;
      Exclusive& operator=(const Exclusive&) = delete;
      ~Exclusive() {
        const std::lock_guard lock(order.mutex_);
        order.is_taken_ = false;
        order.released_.notify_one();
      }

      LaunchOrder& order;
    };

    Exclusive exclusive_;
  };

 private:
  static constexpr std::size_t max_devices = 64;

  std::mutex mutex_;
  std::condition_variable released_;
  bool is_taken_ = false;
  stream::cuda::Event last_;  ///< event of the last operation; complete before the first
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
