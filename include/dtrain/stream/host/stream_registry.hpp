#pragma once
/// @file
/// StreamRegistry: a rank's host streams; runs those that no thread runs, so that streams cannot deadlock.

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/stream/host/on_demand_runner.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// A caller-runs stream makes no progress while its rank's thread waits inside another stream's operation. Example:
/// rank 0 waits in channel A for rank 1, and rank 1 waits in channel B for rank 0. Each has enqueued the work that the
/// other one waits for, and no thread runs it. So a thread that waits long calls run_unattended() repeatedly.
class StreamRegistry {
 public:
  /// A stream's registration, with the thread that runs it on demand. Pinned. Lifetime: the queue outlives it.
  /// Blocking: destruction waits for the work that its thread runs; see OnDemandRunner.
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

  /// Starts a thread for each stream that has work and no thread. Does not block. Allocates only to start a thread.
  void run_unattended() noexcept;

 private:
  void add(OnDemandRunner& runner);

  void remove(OnDemandRunner& runner) noexcept;

  std::mutex mutex_;
  std::vector<OnDemandRunner*> streams_;
};

}  // namespace DTRAIN_NAMESPACE::stream::host

#if DTRAIN_DEFINITIONS

#include <algorithm>

namespace DTRAIN_NAMESPACE::stream::host {

DTRAIN_DEFINED void StreamRegistry::run_unattended() noexcept {
  const std::lock_guard lock(mutex_);
  for (OnDemandRunner* runner : streams_) {
    runner->start_if_idle();
  }
}

DTRAIN_DEFINED void StreamRegistry::add(OnDemandRunner& runner) {
  const std::lock_guard lock(mutex_);
  streams_.push_back(&runner);
}

DTRAIN_DEFINED void StreamRegistry::remove(OnDemandRunner& runner) noexcept {
  const std::lock_guard lock(mutex_);
  streams_.erase(std::find(streams_.begin(), streams_.end(), &runner));
}

}  // namespace DTRAIN_NAMESPACE::stream::host

#endif  // DTRAIN_DEFINITIONS
