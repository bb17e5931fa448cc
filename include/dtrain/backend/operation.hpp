#pragma once
/// @file
/// Operation: descriptor of a call. Ranks compare descriptors, so that mismatched calls fail instead of hanging.

#include <cstdint>
#include <functional>
#include <string>

#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Which operation of a communicator.
enum class OperationKind : std::uint8_t {
  none = 0,
  all_reduce,
  broadcast,
  reduce_scatter,
  all_gather,
  barrier,
  send,
  recv,
  send_recv,
};

/// Plain fields with one layout in every process: it is stored in shared memory and sent in messages.
struct Operation {
  std::uint64_t sequence = 0;    ///< 1, 2, ... among a channel's collectives; 0 point to point
  std::uint64_t count = 0;       ///< elements of the whole buffer, or of one rank's block where it has blocks
  std::uint64_t allocation = 0;  ///< number of the allocation that holds the buffer; 0: none, or out of place
  std::uint64_t offset = 0;      ///< bytes from the beginning of the rank's memory in it
  std::int32_t root = 0;         ///< of a broadcast; point to point, the receiving peer, or else the sending one
  OperationKind kind = OperationKind::none;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;

  /// Whether both ranks called the same operation. Buffer locations (allocation, offset) may differ.
  bool agrees_with(const Operation& other) const noexcept {
    return sequence == other.sequence && count == other.count && root == other.root && kind == other.kind &&
           dtype == other.dtype && op == other.op;
  }
};

/// "all_reduce (sum) of 1024 f32"; "broadcast of 10 f64 from rank 0".
inline std::string to_string(const Operation& operation) {
  const std::string elements = " of " + std::to_string(operation.count) + " " + name(operation.dtype);
  const std::string reduced = std::string(" (") + name(operation.op) + ")";
  const std::string peer = " rank " + std::to_string(operation.root);
  switch (operation.kind) {
    case OperationKind::all_reduce: return "all_reduce" + reduced + elements;
    case OperationKind::broadcast: return "broadcast" + elements + " from" + peer;
    case OperationKind::reduce_scatter: return "reduce_scatter" + reduced + elements + " a rank";
    case OperationKind::all_gather: return "all_gather" + elements + " a rank";
    case OperationKind::barrier: return "barrier";
    case OperationKind::send: return "send" + elements + " to" + peer;
    case OperationKind::recv: return "recv" + elements + " from" + peer;
    case OperationKind::send_recv: return "send_recv" + elements + " to" + peer;
    case OperationKind::none: break;
  }
  return "no operation";
}

/// Names a channel's operations in error sentences; to_string where it is empty. Threads: any.
using DescribeOperation = std::function<std::string(const Operation&)>;

inline std::string described(const Operation& operation, const DescribeOperation& describe) {
  return describe ? describe(operation) : to_string(operation);
}

/// "operation 5 of channel 'group'", or "on channel 'group'" point to point.
inline std::string position_of(const Operation& operation, const std::string& channel) {
  return (operation.sequence == 0 ? "on channel '"
                                  : "operation " + std::to_string(operation.sequence) + " of channel '") +
         channel + "'";
}

}  // namespace DTRAIN_NAMESPACE::backend
