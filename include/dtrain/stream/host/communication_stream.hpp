#pragma once
/// @file
/// The host stream that a group or a DDP instance runs its communication on.

#include <memory>
#include <optional>
#include <utility>

#include "dtrain/stream/host/helper_thread.hpp"
#include "dtrain/stream/host/stream_ref.hpp"
#include "dtrain/stream/host/stream_registry.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// Owns a Queue and, once asked for, the thread that drains it. Movable; references stay valid.
/// Threads: one for each stream, besides what its references allow.
/// Lifetime: outlives its references; work not yet run is dropped at the end.
class CommunicationStream {
 public:
  CommunicationStream() : owned_(std::make_unique<QueueAndHelper>()) {}

  StreamRef ref() const noexcept { return owned_->queue.ref(); }

  /// From now on a thread runs the work; a second call does nothing. @throws Error where no thread can be had.
  void start_helper() {
    if (!owned_->helper) {
      owned_->helper.emplace(owned_->queue);
    }
  }

  /// Blocking: until the work that runs has ended. Whoever waits runs the rest.
  void stop_helper() noexcept { owned_->helper.reset(); }

  /// Registers it as one of the rank's streams: its work runs in the background where the rank is blocked elsewhere.
  void register_with(std::shared_ptr<StreamRegistry> registry) {
    owned_->registration.emplace(std::move(registry), owned_->queue);
  }

  bool has_helper() const noexcept { return owned_->helper.has_value(); }

 private:
  struct QueueAndHelper {
    Queue queue;
    std::optional<StreamRegistry::Registration> registration;
    std::optional<HelperThread> helper;
  };

  std::unique_ptr<QueueAndHelper> owned_;
};

}  // namespace DTRAIN_NAMESPACE::stream::host
