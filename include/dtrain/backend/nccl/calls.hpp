#pragma once
/// @file
/// NCCL's calls for each operation, several as one group, and their arguments: element types, reductions, devices.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "dtrain/backend/nccl/first_calls.hpp"
#include "dtrain/backend/nccl/library.hpp"
#include "dtrain/backend/operations.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// The type of elements; for 8-bit floats bytes, which every version moves on every device.
/// @throws Error (invalid_argument) for a value that is no DType
inline ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return ncclFloat64;
    case DType::f32: return ncclFloat32;
    case DType::f16: return ncclFloat16;
    case DType::bf16: return ncclBfloat16;
    case DType::i64: return ncclInt64;
    case DType::i32: return ncclInt32;
    case DType::u64: return ncclUint64;
    case DType::u32: return ncclUint32;
    case DType::u8:
    case DType::f8e4m3:
    case DType::f8e5m2: return ncclUint8;
  }
  throw_error(Errc::invalid_argument, "NCCL has no elements of {}", {name(dtype)});
}

/// Whether NCCL's averages are correct. NCCL adds integers modulo 2^bits and then divides: wrong if the sum overflows.
constexpr bool averages(DType dtype) noexcept {
  return is_float(dtype);
}

/// On one rank an average becomes a sum: for an average NCCL would multiply by 1 in a kernel; for a sum in place it
/// does nothing.
/// @throws Error (unsupported) for an average that would be wrong; (invalid_argument) for a value that is no ReduceOp
inline ncclRedOp_t reduction_of(ReduceOp op, DType dtype, int ranks) {
  switch (op) {
    case ReduceOp::sum: return ncclSum;
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
    case ReduceOp::product: return ncclProd;
    case ReduceOp::average:
      if (!averages(dtype)) {
        throw_error(Errc::unsupported,
                    "an average of {} by NCCL would be wrong where the sum overflows; reduce with ReduceOp::sum in a "
                    "type that holds it, and divide",
                    {name(dtype)});
      }
      return ranks == 1 ? ncclSum : ncclAvg;
  }
  throw_error(Errc::invalid_argument, "NCCL does not know the reduction {}", {name(op)});
}

/// @throws Error (invalid_argument) unless the buffers and the stream are on device `own`; (unsupported) for host
/// memory
DTRAIN_NOT_INLINED inline void check_devices(const std::string& channel, int own, const Devices& buffers,
                                             Device stream) {
  const Device expected{DeviceKind::cuda, own};
  for (const Device device : buffers) {
    if (device != expected) {
      throw_error(device.kind == expected.kind ? Errc::invalid_argument : Errc::unsupported,
                  "NCCL's channel '{}' takes memory of {}, not memory of {}; give the view the device that its "
                  "memory is on",
                  {channel, to_string(expected), to_string(device)});
    }
  }
  if (stream != expected) {
    throw_error(Errc::invalid_argument, "NCCL's channel '{}' takes streams of {}, not one of {}",
                {channel, to_string(expected), to_string(stream)});
  }
}

/// Issues what `calls(add)` passes to `add` as one group. @returns the first failure, or the group's result
template <class Calls>
ncclResult_t in_group(Calls calls) {
  const ncclResult_t started = ncclGroupStart();
  if (started != ncclSuccess) {
    return started;
  }
  ncclResult_t first_failure = ncclSuccess;
  calls([&first_failure](ncclResult_t code) noexcept {
    if (code != ncclInProgress && first_failure == ncclSuccess) first_failure = code;
  });
  const ncclResult_t ended = ncclGroupEnd();  // also reports errors of the group's calls
  return first_failure != ncclSuccess ? first_failure : ended;
}

/// Several all-gathers as one operation, with the sum of their counts, in bytes if their types differ. @pre not empty
inline Operation describe_together(std::span<const AllGather> calls) {
  Operation whole = calls.front().describe();
  whole.count = 0;
  std::uint64_t bytes = 0;
  bool is_of_one_type = true;
  for (const AllGather& call : calls) {
    whole.count += call.input.count;
    bytes += call.input.bytes();
    is_of_one_type = is_of_one_type && call.input.dtype == whole.dtype;
  }
  if (!is_of_one_type) {
    whole.count = bytes;
    whole.dtype = DType::u8;
  }
  return whole;
}

/// Where a communicator's rank issues calls.
struct CallTarget {
  ncclComm_t communicator;
  int rank;
  stream::cuda::StreamRef stream;
};

/// The paths of a rank's messages.
/// @{
inline std::array<MessagePath, 1> paths_of(const Send& call, int rank) noexcept {
  return {{{rank, call.peer}}};
}
inline std::array<MessagePath, 1> paths_of(const Recv& call, int rank) noexcept {
  return {{{call.peer, rank}}};
}
inline std::array<MessagePath, 2> paths_of(const SendRecv& call, int rank) noexcept {
  return {{{rank, call.to}, {call.from, rank}}};
}
/// @}

/// Issues an operation's calls; more than one as a group.
/// @{
inline ncclResult_t issue_calls(const Send& call, const CallTarget& target) {
  return ncclSend(call.input.data, call.input.count, type_of(call.input.dtype), call.peer, target.communicator,
                  target.stream.native());
}
inline ncclResult_t issue_calls(const Recv& call, const CallTarget& target) {
  return ncclRecv(call.output.data, call.output.count, type_of(call.output.dtype), call.peer, target.communicator,
                  target.stream.native());
}
inline ncclResult_t issue_calls(const SendRecv& call, const CallTarget& target) {
  return in_group([&](const auto& add) {
    add(issue_calls(Send{call.input, call.to}, target));
    add(issue_calls(Recv{call.output, call.from}, target));
  });
}
inline ncclResult_t issue_calls(const AllGather& call, const CallTarget& target) {
  return ncclAllGather(call.input.data, call.output.data, call.input.count, type_of(call.input.dtype),
                       target.communicator, target.stream.native());
}
inline ncclResult_t issue_calls(std::span<const AllGather> calls, const CallTarget& target) {
  return in_group([&](const auto& add) {
    for (const AllGather& gather : calls) {
      add(issue_calls(gather, target));
    }
  });
}
inline ncclResult_t issue_calls(const ExchangeBlocks& call, const CallTarget& target) {
  const BlockExchange& blocks = call.blocks;
  const std::size_t element = size_bytes(call.input.dtype);
  const ncclDataType_t type = type_of(call.input.dtype);
  return in_group([&](const auto& add) {
    for (std::size_t index = 0; index < blocks.sent.size(); ++index) {
      const int peer = static_cast<int>(index);
      const BlockRange& sent = blocks.sent[index];
      const BlockRange& received = blocks.received[index];
      const std::byte* const from = call.input.data + sent.offset * element;
      std::byte* const to = call.output.data + received.offset * element;
      const bool is_in_place = peer == target.rank && from == to;
      if (sent.count != 0 && !is_in_place && blocks.connects(target.rank, peer)) {
        add(ncclSend(from, sent.count, type, peer, target.communicator, target.stream.native()));
      }
      if (received.count != 0 && !is_in_place && blocks.connects(peer, target.rank)) {
        add(ncclRecv(to, received.count, type, peer, target.communicator, target.stream.native()));
      }
    }
  });
}
/// @}

/// One group with an ncclReduce for each block.
inline ncclResult_t reduce_blocks(const ReduceBlocks& call, ncclRedOp_t reduction, const CallTarget& target) {
  const BlockExchange& blocks = call.blocks;
  const std::size_t element = size_bytes(call.input.dtype);
  const ncclDataType_t type = type_of(call.input.dtype);
  return in_group([&](const auto& add) {
    for (std::size_t index = 0; index < blocks.sent.size(); ++index) {
      const int root = static_cast<int>(index);
      const BlockRange& sent = blocks.sent[index];
      if (sent.count != 0) {
        add(ncclReduce(call.input.data + sent.offset * element, root == target.rank ? call.output.data : nullptr,
                       sent.count, type, reduction, root, target.communicator, target.stream.native()));
      }
    }
  });
}

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
