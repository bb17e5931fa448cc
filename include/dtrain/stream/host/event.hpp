#pragma once
/// @file
/// Event: a point in a host stream.

#include <cstdint>

#include "dtrain/stream/host/queue.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// A queue and a ticket. An event never recorded is complete. Threads: any thread polls and waits, but not while
/// another thread records. Lifetime: the queue outlives it.
class Event {
 public:
  bool is_complete() const noexcept { return queue_ == nullptr || queue_->is_complete(ticket_); }

  /// Number of completed work items of its stream; equal values mean that none completed in between.
  std::uint64_t progress() const noexcept { return queue_ == nullptr ? 0 : queue_->completed(); }

  /// Blocking: see Queue::block_until_complete. Each work item ends by a deadline of its own.
  WaitResult block_until_complete(Deadline deadline) const {
    return queue_ == nullptr ? WaitResult::complete : queue_->block_until_complete(ticket_, deadline);
  }

 private:
  friend class StreamRef;

  Queue* queue_ = nullptr;
  std::uint64_t ticket_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::stream::host
