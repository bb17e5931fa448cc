#pragma once
/// @file
/// LaunchTurn: the place of an operation in the order in which operations start on a device.

#include "event.hpp"

namespace emulation {

/// NCCL's implicit launch order: an operation starts after the one launched before it on its device, of whichever
/// communicator, has started (src/enqueue.cc, ncclLaunchPrepare and ncclLaunchFinish: a strong stream per context, with
/// launch completion events). An operation of a graph takes a turn in each replay, as by nodes that wait for and record
/// an event outside the graph.
class LaunchTurn {
 public:
  /// Out of any order.
  LaunchTurn() = default;
  /// The next one of the device. Threads: any; the order is that of these calls.
  static LaunchTurn next(int device);

  /// Blocking, on the stream's thread: until the operation before has started.
  void start() const noexcept {
    if (before_ != nullptr) before_->block();
    if (own_ != nullptr) own_->complete();
  }

 private:
  Record* before_ = nullptr;
  Record* own_ = nullptr;
};

/// Whether NCCL_LAUNCH_ORDER_IMPLICIT asks for it.
bool orders_launches_by_environment() noexcept;

}  // namespace emulation
