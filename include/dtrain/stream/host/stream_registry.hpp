#pragma once
/// @file
/// Stream registry: a rank's host streams; runs those that no thread runs, so that streams cannot deadlock.

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dtrain/stream/host/on_demand_runner.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// A caller-runs stream makes no progress while its rank's thread waits inside another stream's operation. Where rank 0
/// waits in channel A for rank 1, and rank 1 in channel B for rank 0, each has enqueued what the other waits for, and
/// nobody runs it. So whoever waits long calls `run_unattended`, again and again while it waits.
///
/// Threads: all members from any thread. Owned together by the rank's group and its streams.
class StreamRegistry {
 public:
  /// A stream's registration in the registry, and the thread that runs it then. Pinned. Lifetime: the queue outlives
  /// it. Blocking: the end waits for the work that its thread runs; see OnDemandRunner.
  class Registration {
   public:
    Registration(std::shared_ptr<StreamRegistry> registry, Queue& queue)
        : registry_(std::move(registry)), runner_(queue) {
      registry_->add(runner_);
    }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;
    ~Registration() { registry_->remove(runner_); }

   private:
    std::shared_ptr<StreamRegistry> registry_;
    OnDemandRunner runner_;
  };

  StreamRegistry() = default;
  StreamRegistry(const StreamRegistry&) = delete;
  StreamRegistry& operator=(const StreamRegistry&) = delete;

  /// Sees to it that a thread runs each stream that has work and no thread. Blocking: no. Allocates only where it
  /// starts a thread.
  void run_unattended() noexcept {
    const std::lock_guard lock(mutex_);
    for (OnDemandRunner* runner : streams_) {
      runner->start_if_idle();
    }
  }

 private:
  void add(OnDemandRunner& runner) {
    const std::lock_guard lock(mutex_);
    streams_.push_back(&runner);
  }

  void remove(OnDemandRunner& runner) noexcept {
    const std::lock_guard lock(mutex_);
    streams_.erase(std::find(streams_.begin(), streams_.end(), &runner));
  }

  std::mutex mutex_;
  std::vector<OnDemandRunner*> streams_;
};

}  // namespace DTRAIN_NAMESPACE::stream::host
