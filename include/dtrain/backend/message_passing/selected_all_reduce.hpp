#pragma once
/// @file
/// SelectedAllReduce: the algorithm that a topology selects for a communicator's all_reduce.

#include <string_view>

#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/message_passing/routine.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// A communicator with an endpoint runs `routine` for each all_reduce among two or more ranks. The result has equal
/// bits on every rank, which depend only on the operation, the number of ranks and Tuning. Lifetime: `context` and
/// `buffers` outlive the routine.
template <Endpoint E>
struct SelectedAllReduce {
  std::string_view topology{};                                                         ///< for messages
  Routine (*routine)(OperationContext<E>& context, const Buffers& buffers) = nullptr;  ///< null: the communicator's own
};

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
