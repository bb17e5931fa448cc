#pragma once
/// @file
/// topology::SubChannel: a channel of an algorithm's own, whose operations it runs step by step.

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/stream/host/queue.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// No rank: nothing is sent, or nothing received.
inline constexpr int no_rank = -1;

/// An algorithm has many steps for each reduction, more than a stream's queue holds. So a reduction is one work item
/// on the program's stream, and the thread that runs it runs the steps one after the other on a queue of its own.
/// Threads: one takes steps; abort() and failure() from any.
template <backend::Communicator C>
class SubChannel {
 public:
  explicit SubChannel(C communicator)
      : queue_(std::make_unique<stream::host::Queue>()), communicator_(std::move(communicator)) {}

  int rank() const noexcept { return communicator_.rank(); }
  int size() const noexcept { return communicator_.size(); }

  /// Blocking: what `start(communicator, stream)` enqueues has run, by the backend's timeout. @returns whether the
  /// channel still works. @throws what the call throws
  template <class Start>
  bool step(Start start) {
    start(communicator_, queue_->ref());
    // Bounded, although it tries again: each operation ends by a deadline of its own.
    while (queue_->block_until_complete(queue_->published(), Deadline::after(std::chrono::minutes(1))) !=
           stream::WaitResult::complete) {
    }
    return !communicator_.failure();
  }

  /// Sends `input` to one rank and receives `output` from another, at once; without a rank or an element neither.
  bool exchange(ConstBufferView input, int to, BufferView output, int from) {
    const bool sends = to != no_rank && input.count != 0;
    const bool receives = from != no_rank && output.count != 0;
    return step([&](C& communicator, stream::host::StreamRef stream) {
      if (sends && receives) {
        communicator.send_recv(input, to, output, from, stream);
      } else if (sends) {
        communicator.send(input, to, stream);
      } else if (receives) {
        communicator.recv(output, from, stream);
      }
    });
  }
  bool send(ConstBufferView input, int to) { return exchange(input, to, BufferView{}, no_rank); }
  bool recv(BufferView output, int from) { return exchange(ConstBufferView{}, no_rank, output, from); }

  C& communicator() noexcept { return communicator_; }

  void abort(const Cause& cause) noexcept { communicator_.abort(cause); }
  std::optional<Cause> failure() const { return communicator_.failure(); }

 private:
  std::unique_ptr<stream::host::Queue> queue_;
  C communicator_;
};

}  // namespace DTRAIN_NAMESPACE::topology
