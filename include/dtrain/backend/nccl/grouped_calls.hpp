#pragma once
/// @file
/// Calls of NCCL for messages, and groups of calls: an exchange and a reduction of blocks.

#include <cstddef>

#include "dtrain/backend/nccl/datatype.hpp"
#include "dtrain/backend/nccl/library.hpp"
#include "dtrain/backend/operations.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// Keeps the first failure of several calls.
class FirstFailure {
 public:
  void add(ncclResult_t code) noexcept {
    if (code != ncclSuccess && code != ncclInProgress && code_ == ncclSuccess) {
      code_ = code;
    }
  }
  ncclResult_t code() const noexcept { return code_; }

 private:
  ncclResult_t code_ = ncclSuccess;
};

/// Issues what `calls(failures)` calls as one group. @returns the first failure, or the group's result
template <class Calls>
ncclResult_t in_group(Calls calls) {
  const ncclResult_t started = ncclGroupStart();
  if (started != ncclSuccess) {
    return started;
  }
  FirstFailure failures;
  calls(failures);
  const ncclResult_t ended = ncclGroupEnd();  // also reports errors of the group's calls
  return failures.code() != ncclSuccess ? failures.code() : ended;
}

/// Where a communicator's rank issues calls.
struct CallTarget {
  ncclComm_t communicator;
  int rank;
  stream::cuda::StreamRef stream;
};

inline ncclResult_t send(const Send& call, const CallTarget& target) {
  return ncclSend(call.input.data, call.input.count, type_of(call.input.dtype), call.peer, target.communicator,
                  target.stream.native());
}
inline ncclResult_t recv(const Recv& call, const CallTarget& target) {
  return ncclRecv(call.output.data, call.output.count, type_of(call.output.dtype), call.peer, target.communicator,
                  target.stream.native());
}
inline ncclResult_t send_recv(const SendRecv& call, const CallTarget& target) {
  return in_group([&](FirstFailure& failures) {
    failures.add(send({call.input, call.to}, target));
    failures.add(recv({call.output, call.from}, target));
  });
}

/// One group of ncclSend and ncclRecv.
inline ncclResult_t exchange_blocks(const ExchangeBlocks& call, const CallTarget& target) {
  const BlockExchange& blocks = call.blocks;
  const std::size_t element = size_bytes(call.input.dtype);
  const ncclDataType_t type = type_of(call.input.dtype);
  return in_group([&](FirstFailure& failures) {
    for (std::size_t index = 0; index < blocks.sent.size(); ++index) {
      const int peer = static_cast<int>(index);
      const BlockRange& sent = blocks.sent[index];
      const BlockRange& received = blocks.received[index];
      const std::byte* const from = call.input.data + sent.offset * element;
      std::byte* const to = call.output.data + received.offset * element;
      const bool is_in_place = peer == target.rank && from == to;
      if (sent.count != 0 && !is_in_place && blocks.connects(target.rank, peer)) {
        failures.add(ncclSend(from, sent.count, type, peer, target.communicator, target.stream.native()));
      }
      if (received.count != 0 && !is_in_place && blocks.connects(peer, target.rank)) {
        failures.add(ncclRecv(to, received.count, type, peer, target.communicator, target.stream.native()));
      }
    }
  });
}

/// One group with an ncclReduce for each block.
inline ncclResult_t reduce_blocks(const ReduceBlocks& call, ncclRedOp_t reduction, const CallTarget& target) {
  const BlockExchange& blocks = call.blocks;
  const std::size_t element = size_bytes(call.input.dtype);
  const ncclDataType_t type = type_of(call.input.dtype);
  return in_group([&](FirstFailure& failures) {
    for (std::size_t index = 0; index < blocks.sent.size(); ++index) {
      const int root = static_cast<int>(index);
      const BlockRange& sent = blocks.sent[index];
      if (sent.count != 0) {
        failures.add(ncclReduce(call.input.data + sent.offset * element,
                                root == target.rank ? call.output.data : nullptr, sent.count, type, reduction, root,
                                target.communicator, target.stream.native()));
      }
    }
  });
}

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
