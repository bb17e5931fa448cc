#pragma once
/// @file
/// Broadcast of rank 0's parameter values and buffers to every rank, once, before training.

#include <span>

#include "dtrain/backend/block_until_complete.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Collective, blocking: returns when all values and buffers are rank 0's, in the model's own memory.
/// Precondition: the work that wrote them has run, or `stream` runs after it.
/// @throws the job's first cause; Error (timeout).
template <backend::Communicator Communicator>
void broadcast_values(Communicator& communicator, typename Communicator::Stream stream,
                      std::span<const Parameter> parameters, std::span<const TensorView> buffers,
                      const FailureContext& context) {
  for (const Parameter& parameter : parameters) {
    if (parameter.value.shape.element_count() != 0) {
      communicator.broadcast(parameter.value.flat(), 0, stream);
    }
  }
  for (const TensorView& buffer : buffers) {
    if (buffer.shape.element_count() != 0) {
      communicator.broadcast(buffer.flat(), 0, stream);
    }
  }
  typename Communicator::Stream::Event received;
  stream.record(received);
  backend::block_until_complete(received, communicator, *context.latch, context.timeout, context.rank);
}

}  // namespace DTRAIN_NAMESPACE::ddp
