#pragma once
/// @file
/// The host stream that a group or a DDP instance runs its communication on.

#include <memory>
#include <optional>
#include <utility>

#include "dtrain/stream/host/helper_thread.hpp"
#include "dtrain/stream/host/stream_ref.hpp"
#include "dtrain/stream/host/stream_set.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// Owns a Queue and, once asked for, the thread that drains it. Movable; references stay valid.
/// Threads: one for each stream, besides what its references allow.
/// Lifetime: outlives its references; work not yet run is dropped at the end.
class CommunicationStream {
 public:
  CommunicationStream() : state_(std::make_unique<State>()) {}

  StreamRef ref() const noexcept { return state_->queue.ref(); }

  /// From now on a thread runs the work; a second call does nothing. @throws Error where no thread can be had.
  void start_helper() {
    if (!state_->helper) {
      state_->helper.emplace(state_->queue);
    }
  }

  /// Blocking: until the work that runs has ended. Whoever waits runs the rest.
  void stop_helper() noexcept { state_->helper.reset(); }

  /// One of the rank's streams from now on: its work is run in the background where the rank is stalled elsewhere.
  void enter(std::shared_ptr<StreamSet> set) { state_->place.emplace(std::move(set), state_->queue); }

  bool has_helper() const noexcept { return state_->helper.has_value(); }

 private:
  struct State {
    Queue queue;
    std::optional<StreamSet::Place> place;
    std::optional<HelperThread> helper;
  };

  std::unique_ptr<State> state_;
};

}  // namespace DTRAIN_NAMESPACE::stream::host
