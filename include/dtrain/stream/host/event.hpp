#pragma once
/// @file
/// A point in a host stream.

#include <cstdint>

#include "dtrain/stream/host/queue.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// A queue and a ticket; an event never recorded is complete. Threads: polled and waited for by any thread; not while
/// another thread records it. Lifetime: the queue outlives it.
class Event {
 public:
  bool is_complete() const noexcept { return queue_ == nullptr || queue_->is_complete(ticket_); }

  /// How much work of its stream is done: of two equal values none ended in between.
  std::uint64_t progress() const noexcept { return queue_ == nullptr ? 0 : queue_->completed(); }

  /// Blocking: see Queue::block_until_complete. Each piece of work ends by a deadline of its own.
  WaitResult block_until_complete(Deadline deadline) const {
    return queue_ == nullptr ? WaitResult::complete : queue_->block_until_complete(ticket_, deadline);
  }

 private:
  friend class StreamRef;

  Queue* queue_ = nullptr;
  std::uint64_t ticket_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::stream::host
