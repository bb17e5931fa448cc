#pragma once
/// @file
/// LaunchTurn: the place of an operation in the order in which operations start on a device. LiveLaunch: who launches.

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

/// The thread that launches: of a group, or of one operation. NCCL's implicit launch order bears one at a time.
class LaunchingThread {
 public:
  /// Another one than any before.
  static LaunchingThread next() noexcept;

 private:
  friend class LiveLaunch;
  std::uint64_t number_ = 0;
};

/// While it lives, a thread launches on the device, outside a capture, in the implicit order (src/misc/strongstream.cc,
/// ncclStrongStreamAcquire and ncclStrongStreamRelease).
class LiveLaunch {
 public:
  LiveLaunch(int device, LaunchingThread thread) noexcept;
  /// Whether another thread has begun to launch on the device since, which is an error unless NCCL_LAUNCH_RACE_FATAL is
  /// 0: of the thread that began first.
  bool is_fatal_race() const noexcept;
  static constexpr char race_text[] = "Fatal: host threads racing to launch NCCL on same device.";

 private:
  const int device_;
  const std::uint64_t number_;
};

/// Whether the environment's variable is there and has that value.
bool variable_is(const char* name, const char* wanted) noexcept;
/// Whether NCCL_LAUNCH_ORDER_IMPLICIT asks for the order.
bool orders_launches_by_environment() noexcept;

}  // namespace emulation
