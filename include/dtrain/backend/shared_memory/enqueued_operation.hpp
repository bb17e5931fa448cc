#pragma once
/// @file
/// Work item of a stream: an operation of a shared-memory channel.

#include <cstdint>

#include "dtrain/backend/operation.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// An enqueued operation. Holds a reference to the channel, and what the algorithm owns, until it has run or was
/// dropped.
template <class Algorithm>
struct EnqueuedOperation {
  Channel* channel;
  std::uint64_t turn;
  Operation operation;
  Algorithm algorithm;

  void operator()() noexcept {
    channel->run(turn, operation, [this]() noexcept { algorithm(*channel, operation); });
    drop();
  }
  void drop() noexcept {
    if constexpr (requires { algorithm.release(); }) {
      algorithm.release();
    }
    channel->release();
  }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
