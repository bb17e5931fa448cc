#pragma once
/// @file
/// A rank with a SharedMemory channel and a stream, for ranks that are threads.

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/backend/shared_memory.hpp"
#include "support/channel_context.hpp"
#include "support/thread_ranks.hpp"

namespace support {

/// The stream outlives the communicator, as it does in a ProcessGroup.
struct SharedMemoryRank {
  SharedMemoryRank(const std::shared_ptr<FakeJob>& job, int rank, int size, const std::string& name = "group",
                   std::chrono::nanoseconds timeout = std::chrono::seconds(10))
      : latch(job->latch(rank)),
        communicator(dtrain::backend::SharedMemory::open_blocking(channel_context(job, rank, size, name, timeout),
                                                                  dtrain::Deadline::after(std::chrono::seconds(10)))) {}

  /// Blocking: runs what is enqueued. @returns whether the communicator still serves.
  bool wait() {
    dtrain::stream::host::Event event;
    stream.ref().record(event);
    const auto result = event.block_until_complete(dtrain::Deadline::after(std::chrono::seconds(30)));
    return result == dtrain::stream::WaitResult::complete && !communicator.failure();
  }

  std::shared_ptr<dtrain::FailureLatch> latch;
  dtrain::backend::SharedMemory::StreamOwner stream;
  dtrain::backend::SharedMemory::Communicator communicator;
};

}  // namespace support
