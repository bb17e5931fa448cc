#pragma once
/// @file
/// The communication streams of one rank, none of which may keep another waiting.

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dtrain/stream/host/rescue_thread.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// A caller-runs stream rests while its rank's thread waits inside another stream's operation. Where rank 0 waits in
/// channel A for rank 1, and rank 1 in channel B for rank 0, each has enqueued what the other waits for, and nobody
/// runs it. So whoever waits long calls `run_what_nobody_runs`, again and again while it waits.
///
/// Threads: all members from any thread. Owned together by the rank's group and its streams.
class StreamSet {
 public:
  /// A stream's place in the set, and the thread that runs it then. Pinned. Lifetime: the queue outlives it.
  /// Blocking: the end waits for the work that its thread runs; see RescueThread.
  class Place {
   public:
    Place(std::shared_ptr<StreamSet> set, Queue& queue) : set_(std::move(set)), rescue_(queue) { set_->add(rescue_); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() { set_->remove(rescue_); }

   private:
    std::shared_ptr<StreamSet> set_;
    RescueThread rescue_;
  };

  StreamSet() = default;
  StreamSet(const StreamSet&) = delete;
  StreamSet& operator=(const StreamSet&) = delete;

  /// Sees to it that a thread runs each stream that has work and no thread. Blocking: no. Allocates only where it
  /// starts a thread.
  void run_what_nobody_runs() noexcept {
    const std::lock_guard lock(mutex_);
    for (RescueThread* rescue : streams_) {
      rescue->run_if_left_alone();
    }
  }

 private:
  void add(RescueThread& rescue) {
    const std::lock_guard lock(mutex_);
    streams_.push_back(&rescue);
  }

  void remove(RescueThread& rescue) noexcept {
    const std::lock_guard lock(mutex_);
    streams_.erase(std::find(streams_.begin(), streams_.end(), &rescue));
  }

  std::mutex mutex_;
  std::vector<RescueThread*> streams_;
};

}  // namespace DTRAIN_NAMESPACE::stream::host
