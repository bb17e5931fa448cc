#pragma once
/// @file
/// Operation: descriptor of a communicator's call, with one layout in every process; ranks compare descriptors, so that
/// mismatched calls fail instead of hanging.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
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
  reduce,
  gather,
  scatter,
  all_to_all,
  all_gather_v,
  reduce_scatter_v,
  all_to_all_v,
  gather_v,
  scatter_v,
};

const char* name(OperationKind kind) noexcept;

/// Whether the operation's blocks differ in count: pairs of ranks compare the counts, and Operation::count is 0.
constexpr bool has_unequal_blocks(OperationKind kind) noexcept {
  return kind == OperationKind::all_gather_v || kind == OperationKind::reduce_scatter_v ||
         kind == OperationKind::all_to_all_v || kind == OperationKind::gather_v || kind == OperationKind::scatter_v;
}

/// Plain fields with one layout in every process: it is stored in shared memory and sent in messages.
struct Operation {
  std::uint64_t sequence = 0;    ///< 1, 2, ... among a channel's collectives; 0 point to point
  std::uint64_t count = 0;       ///< elements of the whole buffer, or of one rank's block where it has blocks
  std::uint64_t allocation = 0;  ///< number of the allocation that holds the buffer; 0: none, or out of place
  std::uint64_t offset = 0;      ///< bytes from the beginning of the rank's memory in it
  std::int32_t root = 0;         ///< a broadcast's root; a send_recv's rank sent to, or if none the rank received from
  OperationKind kind = OperationKind::none;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  bool sums_squares = false;  ///< whether the rank needs the sum of squares: see AllReduceWithSquares

  /// Whether both ranks called the same operation. Buffer locations (allocation, offset) and `sums_squares` may differ.
  bool agrees_with(const Operation& other) const noexcept {
    return sequence == other.sequence && count == other.count && root == other.root && kind == other.kind &&
           dtype == other.dtype && op == other.op;
  }
};

/// "all_reduce (sum) of 1024 f32"; "broadcast of 10 f64 from rank 0".
std::string to_string(const Operation& operation);

/// Names a channel's operations in error sentences; an empty one stands for to_string. Threads: any.
using DescribeOperation = std::function<std::string(const Operation&)>;

inline std::string described(const Operation& operation, const DescribeOperation& describe) {
  return describe ? describe(operation) : to_string(operation);
}

/// "operation 5 of channel 'group'", or "on channel 'group'" point to point.
std::string position_of(const Operation& operation, const std::string& channel);

/// "all_reduce (sum) of 1024 f32, operation 5 of channel 'group'".
std::string described_on(const std::string& channel, const Operation& operation,
                         const DescribeOperation& describe = {});

/// The sentence for ranks that call different operations. @param call what `rank` calls @param act what `other` does:
/// "called barrier"
std::string unequal_calls(const std::string& position, int rank, const std::string& call, int other,
                          std::string_view act);

/// One rank's description of a message.
struct MessageEnd {
  int job_rank;
  std::uint64_t count;
  DType dtype;
};

/// The sentence for a message whose ends differ. @param place "on channel 'group'"
std::string unequal_message(const std::string& place, const MessageEnd& sent, const MessageEnd& received);

/// The end of the sentence for an operation on a wrong stream.
inline constexpr const char* began_early =
    "began before the one enqueued before it had run; operations of one communicator go to one stream, or to streams "
    "that wait for each other";

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED const char* name(OperationKind kind) noexcept {
  switch (kind) {
    case OperationKind::all_reduce: return "all_reduce";
    case OperationKind::broadcast: return "broadcast";
    case OperationKind::reduce_scatter: return "reduce_scatter";
    case OperationKind::all_gather: return "all_gather";
    case OperationKind::barrier: return "barrier";
    case OperationKind::send: return "send";
    case OperationKind::recv: return "recv";
    case OperationKind::send_recv: return "send_recv";
    case OperationKind::reduce: return "reduce";
    case OperationKind::gather: return "gather";
    case OperationKind::scatter: return "scatter";
    case OperationKind::all_to_all: return "all_to_all";
    case OperationKind::all_gather_v: return "all_gather_v";
    case OperationKind::reduce_scatter_v: return "reduce_scatter_v";
    case OperationKind::all_to_all_v: return "all_to_all_v";
    case OperationKind::gather_v: return "gather_v";
    case OperationKind::scatter_v: return "scatter_v";
    case OperationKind::none: break;
  }
  return "no operation";
}

DTRAIN_DEFINED std::string to_string(const Operation& operation) {
  const char* const kind = name(operation.kind);
  const std::string counted = has_unequal_blocks(operation.kind)
                                  ? std::string(name(operation.dtype))
                                  : format_text("{} {}", {operation.count, name(operation.dtype)});
  const std::string elements = format_text("{} of {}", {kind, counted});
  const std::string reduction = format_text("{} ({}) of {}", {kind, name(operation.op), counted});
  switch (operation.kind) {
    case OperationKind::all_reduce:
    case OperationKind::reduce_scatter_v: return reduction;
    case OperationKind::reduce_scatter: return format_text("{} a rank", {reduction});
    case OperationKind::reduce: return format_text("{} to rank {}", {reduction, operation.root});
    case OperationKind::broadcast:
    case OperationKind::recv:
    case OperationKind::scatter_v: return format_text("{} from rank {}", {elements, operation.root});
    case OperationKind::send:
    case OperationKind::send_recv:
    case OperationKind::gather_v: return format_text("{} to rank {}", {elements, operation.root});
    case OperationKind::gather: return format_text("{} a rank to rank {}", {elements, operation.root});
    case OperationKind::scatter: return format_text("{} a rank from rank {}", {elements, operation.root});
    case OperationKind::all_gather:
    case OperationKind::all_to_all: return format_text("{} a rank", {elements});
    case OperationKind::all_gather_v:
    case OperationKind::all_to_all_v: return elements;
    case OperationKind::barrier:
    case OperationKind::none: break;
  }
  return kind;
}

DTRAIN_DEFINED std::string position_of(const Operation& operation, const std::string& channel) {
  return operation.sequence == 0 ? format_text("on channel '{}'", {channel})
                                 : format_text("operation {} of channel '{}'", {operation.sequence, channel});
}

DTRAIN_DEFINED std::string described_on(const std::string& channel, const Operation& operation,
                                        const DescribeOperation& describe) {
  return format_text("{}, {}", {described(operation, describe), position_of(operation, channel)});
}

DTRAIN_DEFINED std::string unequal_calls(const std::string& position, int rank, const std::string& call, int other,
                                         std::string_view act) {
  return format_text("as {}, rank {} called {} and rank {} {}; every rank calls the same collectives in the same order",
                     {position, rank, call, other, act});
}

DTRAIN_DEFINED std::string unequal_message(const std::string& place, const MessageEnd& sent,
                                           const MessageEnd& received) {
  return format_text(
      "{}, rank {} sends {} {} and rank {} receives {} {}; both give the same count and type",
      {place, sent.job_rank, sent.count, name(sent.dtype), received.job_rank, received.count, name(received.dtype)});
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::backend
