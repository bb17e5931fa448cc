/// @file
/// Calls of collectives, sends and receives, and the operators that programs make for them.

#include "api.hpp"
#include "copy.hpp"
#include "device_memory.hpp"
#include "group.hpp"
#include "stream.hpp"

using namespace emulation;

namespace {

/// The address of a buffer that the communicator's device may use; null where it may not.
std::byte* reached(const Communicator& communicator, const void* buffer, std::size_t bytes) {
  const End end = end_of(buffer, bytes);
  if (end.kind == End::Kind::pageable) return nullptr;
  if (end.is_device() && device_of(buffer) != communicator.device()) return nullptr;
  return static_cast<std::byte*>(end.address);
}

/// Sets what the operation reduces with; false where the operator is none of the communicator's.
bool set_reduction(Operation& operation, const Communicator& communicator, ncclRedOp_t named) {
  operation.named_reduction = named;
  if (named < ncclNumOps) {
    operation.reduction = {named, false, 1};
    if (named == ncclAvg && is_floating(operation.type)) {
      operation.reduction = {ncclSum, true, 1.0 / communicator.size()};
    }
    return true;
  }
  const auto index = static_cast<std::size_t>(named - ncclNumOps);
  if (index >= communicator.operators.size()) return false;
  const UserOperator& made = communicator.operators[index];
  operation.reduction = {ncclSum, true, made.scalar};
  operation.scalar_address = made.scalar_address;
  return made.is_used && made.type == operation.type;
}

/// Where a call's sizes differ: elements that are sent and received, for `count` of the call.
struct Sizes {
  std::size_t sent;
  std::size_t received;
};

ncclResult_t collective(const char* function, Operation operation, const void* from, void* to, Sizes sizes,
                        ncclRedOp_t named, ncclComm_t handle, cudaStream_t stream) {
  const RuntimeScope scope;
  if (const ncclResult_t refused = nccl_admitted(function)) return refused;
  if (handle == nullptr || stream_of(stream) == nullptr) return ncclInvalidArgument;
  Communicator& communicator = *communicator_of(handle);
  const InsideCall inside(communicator);
  if (is_broken(communicator.device())) return ncclUnhandledCudaError;
  const ncclResult_t now = communicator.polled();
  if (now != ncclSuccess) return now == ncclInProgress ? ncclInvalidArgument : now;
  const std::size_t element = element_bytes(operation.type);
  const bool is_on_device = stream_of(stream)->device() == communicator.device();
  if (element == 0 || !is_on_device || operation.root < 0 || operation.root >= communicator.size()) {
    return ncclInvalidArgument;
  }
  if (!set_reduction(operation, communicator, named)) return ncclInvalidArgument;
  if (communicator.size() == 1 && operation.reduction.is_scaled && operation.count > 0) count_kernel_of_one_rank();
  if (operation.count == 0) return ncclSuccess;
  if (sizes.sent > 0) {
    operation.from = reached(communicator, from, sizes.sent * element);
    if (operation.from == nullptr) return ncclInvalidArgument;
  }
  if (sizes.received > 0) {
    operation.to = reached(communicator, to, sizes.received * element);
    if (operation.to == nullptr) return ncclInvalidArgument;
  }
  return submit(communicator, *stream_of(stream), std::move(operation));
}

ncclResult_t message(const char* function, bool is_send, const void* buffer, std::size_t count, ncclDataType_t type,
                     int peer, ncclComm_t handle, cudaStream_t stream) {
  const RuntimeScope scope;
  if (const ncclResult_t refused = nccl_admitted(function)) return refused;
  if (handle == nullptr || stream_of(stream) == nullptr) return ncclInvalidArgument;
  Communicator& communicator = *communicator_of(handle);
  const InsideCall inside(communicator);
  if (is_broken(communicator.device())) return ncclUnhandledCudaError;
  const ncclResult_t now = communicator.polled();
  if (now != ncclSuccess) return now == ncclInProgress ? ncclInvalidArgument : now;
  const std::size_t bytes = count * element_bytes(type);
  if (peer < 0 || peer >= communicator.size() || element_bytes(type) == 0) return ncclInvalidArgument;
  if (bytes == 0) return ncclSuccess;
  std::byte* const address = reached(communicator, buffer, bytes);
  if (address == nullptr) return ncclInvalidArgument;
  Operation operation;
  operation.kind = Operation::Kind::messages;
  operation.messages.push_back({is_send, peer, address, bytes});
  return submit(communicator, *stream_of(stream), std::move(operation));
}

Operation operation_of(Operation::Kind kind, std::size_t count, ncclDataType_t type, int root = 0) {
  Operation operation;
  operation.kind = kind;
  operation.count = count;
  operation.type = type;
  operation.root = root;
  return operation;
}

std::size_t ranks_of(ncclComm_t handle) {
  return handle == nullptr ? 0 : static_cast<std::size_t>(communicator_of(handle)->size());
}

bool is_rank(ncclComm_t handle, int rank) {
  return handle != nullptr && communicator_of(handle)->rank() == rank;
}

}  // namespace

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                           ncclComm_t communicator, cudaStream_t stream) {
  return collective("ncclAllReduce", operation_of(Operation::Kind::all_reduce, count, type), from, to, {count, count},
                    reduction, communicator, stream);
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t reduction, int root,
                        ncclComm_t communicator, cudaStream_t stream) {
  const Sizes sizes{count, is_rank(communicator, root) ? count : 0};
  return collective("ncclReduce", operation_of(Operation::Kind::reduce, count, type, root), from, to, sizes, reduction,
                    communicator, stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  const Sizes sizes{is_rank(communicator, root) ? count : 0, count};
  return collective("ncclBroadcast", operation_of(Operation::Kind::broadcast, count, type, root), from, to, sizes,
                    ncclSum, communicator, stream);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                               ncclComm_t communicator, cudaStream_t stream) {
  return collective("ncclReduceScatter", operation_of(Operation::Kind::reduce_scatter, count, type), from, to,
                    {count * ranks_of(communicator), count}, reduction, communicator, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t communicator,
                           cudaStream_t stream) {
  return collective("ncclAllGather", operation_of(Operation::Kind::all_gather, count, type), from, to,
                    {count, count * ranks_of(communicator)}, ncclSum, communicator, stream);
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return message("ncclSend", true, from, count, type, peer, communicator, stream);
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return message("ncclRecv", false, to, count, type, peer, communicator, stream);
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* made, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t handle) {
  const RuntimeScope scope;
  if (const ncclResult_t refused = nccl_admitted("ncclRedOpCreatePreMulSum")) return refused;
  if (handle == nullptr || scalar == nullptr || element_bytes(type) == 0) return ncclInvalidArgument;
  Communicator& communicator = *communicator_of(handle);
  const InsideCall inside(communicator);
  for (std::size_t i = 0; i < communicator.operators.size(); ++i) {
    UserOperator& place = communicator.operators[i];
    if (place.is_used) continue;
    place = {true, type, 1, nullptr};
    if (residence == ncclScalarHostImmediate)
      place.scalar = scalar_at(scalar, type);
    else
      place.scalar_address = reached(communicator, scalar, element_bytes(type));
    *made = static_cast<ncclRedOp_t>(ncclNumOps + static_cast<int>(i));
    return ncclSuccess;
  }
  return ncclInternalError;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t reduction, ncclComm_t handle) {
  const RuntimeScope scope;
  if (const ncclResult_t refused = nccl_admitted("ncclRedOpDestroy")) return refused;
  if (handle == nullptr || reduction < ncclNumOps) return ncclInvalidArgument;
  const auto index = static_cast<std::size_t>(reduction - ncclNumOps);
  Communicator& communicator = *communicator_of(handle);
  const InsideCall inside(communicator);
  if (index >= communicator.operators.size() || !communicator.operators[index].is_used) return ncclInvalidArgument;
  communicator.operators[index].is_used = false;
  return ncclSuccess;
}
