#pragma once
/// @file
/// Broadcast of rank 0's parameter values and buffers to every rank, once, before training.

#include "dtrain/backend/block_until_complete.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/ddp/broadcast/packed_broadcast.hpp"
#include "dtrain/ddp/failure_context.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Collective, blocking: returns when all of `values` are rank 0's, in the model's own memory.
/// Precondition: the work that wrote them has run, or `stream` runs after it. Lifetime: `values` outlives
/// `communicator`, which may still use its memory after an exception.
/// @throws the job's first cause; Error (timeout).
template <backend::Communicator Communicator>
void broadcast_values(Communicator& communicator, typename Communicator::Stream stream, PackedBroadcast& values,
                      const FailureContext& context) {
  const auto wait = [&] {
    typename Communicator::Stream::Event done;
    stream.record(done);
    backend::block_until_complete(done, communicator, *context.latch, context.timeout, context.rank);
  };
  // This thread copies: work of the stream that an exception leaves behind would copy after the end of `values`.
  values.launch(
      communicator.rank() == 0, [&](const BufferView& value) { communicator.broadcast(value, 0, stream); },
      [&](auto copy) {
        wait();
        copy();
      });
  wait();
}

}  // namespace DTRAIN_NAMESPACE::ddp
