#pragma once
/// @file
/// CommunicationStream: the host stream for the communication of a group or a DDP instance.

#include <memory>
#include <optional>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/stream/host/helper_thread.hpp"
#include "dtrain/stream/host/stream_ref.hpp"
#include "dtrain/stream/host/stream_registry.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// Owns a Queue and, after start_helper(), the thread that drains it. Movable; references stay valid. Threads: one at a
/// time, its references as StreamRef. Lifetime: outlives its references; destruction drops work that has not run.
class CommunicationStream {
 public:
  CommunicationStream();

  StreamRef ref() const noexcept { return owned_->queue.ref(); }

  /// Starts a thread that runs the work; a second call does nothing. @throws Error if the system cannot start a thread.
  void start_helper();

  /// Blocking: until the running work has ended. Waiting threads run the rest.
  void stop_helper() noexcept { owned_->helper.reset(); }

  /// Registers it as one of the rank's streams: its work runs in the background while the rank is blocked elsewhere.
  void register_with(std::shared_ptr<StreamRegistry> registry);

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

#if DTRAIN_DEFINITIONS

namespace DTRAIN_NAMESPACE::stream::host {

DTRAIN_DEFINED CommunicationStream::CommunicationStream() : owned_(std::make_unique<QueueAndHelper>()) {}

DTRAIN_DEFINED void CommunicationStream::start_helper() {
  if (!owned_->helper) {
    owned_->helper.emplace(owned_->queue);
  }
}

DTRAIN_DEFINED void CommunicationStream::register_with(std::shared_ptr<StreamRegistry> registry) {
  owned_->registration.emplace(std::move(registry), owned_->queue);
}

}  // namespace DTRAIN_NAMESPACE::stream::host

#endif  // DTRAIN_DEFINITIONS
