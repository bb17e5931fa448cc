#pragma once
/// @file
/// CollectiveEndpoint of MpiCollectives: runs whole collectives as MPI's nonblocking ones, which cannot be cancelled.

#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <utility>

#include "dtrain/backend/message_passing/algorithms/algorithm_selection.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/mpi/endpoint.hpp"
#include "dtrain/backend/mpi/library.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/partial_reduction.hpp"
#include "dtrain/kernels/reduction.hpp"

#if DTRAIN_WITH_MPI

namespace DTRAIN_NAMESPACE::backend::mpi {

/// The MPI datatype of the elements: 16-bit and 8-bit integers for f16, bf16 and 8-bit floats, which MPI lacks.
inline MPI_Datatype datatype_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64: return MPI_DOUBLE;
    case DType::f32: return MPI_FLOAT;
    case DType::i64: return MPI_INT64_T;
    case DType::i32: return MPI_INT32_T;
    case DType::u64: return MPI_UINT64_T;
    case DType::u32: return MPI_UINT32_T;
    case DType::f16:
    case DType::bf16: return MPI_UINT16_T;
    case DType::u8:
    case DType::f8e4m3:
    case DType::f8e5m2: break;
  }
  return MPI_UINT8_T;
}

/// The operators of one channel. An average is a sum of values from kernels::PartialReduction. MPI defines neither the
/// order of a sum nor a minimum with a NaN, so minimum and maximum are dtrain's. Threads: the one that holds the
/// ProgressLoop's lock.
class Operators {
 public:
  Operators() = default;
  Operators(const Operators&) = delete;
  Operators& operator=(const Operators&) = delete;

  /// @throws Error (mpi)
  MPI_Op of(DType dtype, ReduceOp op) {
    const bool half = dtype == DType::f16 || dtype == DType::bf16;
    const bool real = half || dtype == DType::f32 || dtype == DType::f64;
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::average: return half ? made(dtype, ReduceOp::sum) : MPI_SUM;
      case ReduceOp::product: return half ? made(dtype, op) : MPI_PROD;
      case ReduceOp::min: return real ? made(dtype, op) : MPI_MIN;
      case ReduceOp::max: break;
    }
    return real ? made(dtype, ReduceOp::max) : MPI_MAX;
  }

  /// Precondition: MPI runs.
  void free() noexcept {
    for (auto& [key, op] : made_) {
      static_cast<void>(MPI_Op_free(&op));
    }
    made_.clear();
  }

 private:
  template <DType dtype, ReduceOp op>
  static void combine(void* from, void* into, int* count, MPI_Datatype* /*type*/) {
    auto* const target = static_cast<std::byte*>(into);
    const std::array<const std::byte*, 2> sources{static_cast<const std::byte*>(from), target};
    const std::array<std::byte*, 1> targets{target};
    kernels::Reduction::of(dtype, op)(sources, targets, static_cast<std::size_t>(*count));
  }

  template <DType dtype>
  static MPI_User_function* function_for(ReduceOp op) noexcept {
    switch (op) {
      case ReduceOp::min: return combine<dtype, ReduceOp::min>;
      case ReduceOp::max: return combine<dtype, ReduceOp::max>;
      case ReduceOp::product: return combine<dtype, ReduceOp::product>;
      default: return combine<dtype, ReduceOp::sum>;
    }
  }

  static MPI_User_function* function_for(DType dtype, ReduceOp op) noexcept {
    switch (dtype) {
      case DType::f64: return function_for<DType::f64>(op);
      case DType::f32: return function_for<DType::f32>(op);
      case DType::f16: return function_for<DType::f16>(op);
      default: return function_for<DType::bf16>(op);
    }
  }

  MPI_Op made(DType dtype, ReduceOp op) {
    const auto [entry, is_new] = made_.try_emplace(std::pair(dtype, op), MPI_OP_NULL);
    if (is_new) {
      constexpr int commutes = 1;
      check(MPI_Op_create(function_for(dtype, op), commutes, &entry->second), "making an operator");
    }
    return entry->second;
  }

  std::map<std::pair<DType, ReduceOp>, MPI_Op> made_;
};

/// Endpoint that also runs whole collectives, over a communicator of the channel's own. Each is one nonblocking call,
/// which MPI cannot cancel: an abandoned one takes MPI out of service in this process. The ranks' calls are not
/// compared. Threads: as Endpoint.
class CollectiveEndpoint : public Endpoint {
 public:
  using Endpoint::Endpoint;

  /// Collective over the channel's ranks, blocking without a deadline. Precondition: all ranks announced it.
  /// @throws Error (mpi)
  void make_communicator(MPI_Comm parent, int tag) {
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group own = MPI_GROUP_NULL;
    check(MPI_Comm_group(parent, &all), "asking for the job's ranks");
    check(MPI_Group_incl(all, size(), world_ranks().data(), &own), "choosing a channel's ranks");
    check(MPI_Comm_create_group(parent, own, tag, &collectives_), "making a channel's communicator");
    check(MPI_Comm_set_errhandler(collectives_, MPI_ERRORS_RETURN), "having errors returned");
    check(MPI_Group_free(&own), "choosing a channel's ranks");
    check(MPI_Group_free(&all), "asking for the job's ranks");
  }

  /// Preconditions: MPI runs, and no collective was cancelled.
  void free_communicator() noexcept {
    operators_.free();
    if (collectives_ != MPI_COMM_NULL) {
      static_cast<void>(MPI_Comm_free(&collectives_));
    }
  }

  /// Whether MPI runs the operation; the same on every rank. MPI counts to 2^31 - 1; dtrain's algorithms run the rest.
  bool carries(const Operation& operation) const noexcept {
    const DType widest = kernels::partial_type(operation.dtype, operation.op, Accumulate::f32);
    return operation.count * size_bytes(widest) <= static_cast<std::size_t>(std::numeric_limits<int>::max());
  }

  /// Sources: MPI 3.1, 5.12, "Nonblocking Collective Operations". In MPI all ranks or none operate in place, so
  /// separate inputs are copied. MPI reduces partial results. Lifetime: as message_passing::collective
  template <message_passing::Endpoint E>
  message_passing::Routine collective(message_passing::OperationContext<E>& context,
                                      const message_passing::Buffers& buffers) {
    const Operation& operation = context.operation;
    const std::size_t bytes = operation.count * size_bytes(operation.dtype);
    const bool scatters = operation.kind == OperationKind::reduce_scatter;
    if (scatters || operation.kind == OperationKind::all_reduce) {
      const kernels::PartialReduction reduction = context.partial_reduction();
      Operation carried = operation;
      carried.dtype = reduction.type();
      const std::size_t partial_bytes = operation.count * size_bytes(reduction.type());
      const std::size_t given = scatters ? operation.count * static_cast<std::size_t>(size()) : operation.count;
      const bool prepares = reduction.widens() || operation.op == ReduceOp::average;
      const bool in_place = buffers.output == buffers.input + static_cast<std::size_t>(rank()) * bytes;
      const std::byte* input = buffers.input;
      std::byte* result = buffers.output;
      if (scatters) {
        std::byte* const memory =
            context.scratch.at_least(partial_bytes + (prepares ? given * size_bytes(reduction.type()) : 0));
        result = reduction.widens() || (in_place && !prepares) ? memory : result;
        if (prepares) {
          reduction.begin(input, memory + partial_bytes, given);
          input = memory + partial_bytes;
        }
      } else {
        result = reduction.widens() ? context.scratch.at_least(partial_bytes) : result;
        reduction.begin(input, result, given);
      }
      const MessageHandle started = start(carried, input, result);
      co_await done(started);
      reduction.end(result, buffers.output, operation.count);
      co_return;
    }
    if (operation.kind == OperationKind::all_gather) {
      copy(buffers.output + static_cast<std::size_t>(rank()) * bytes, buffers.input, bytes);
    }
    const MessageHandle started = start(operation, buffers.input, buffers.output);
    co_await done(started);
  }

 private:
  static void copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
    if (to != from) {
      kernels::copy_bytes(to, from, bytes);
    }
  }

  MessageHandle start(const Operation& operation, const std::byte* input, std::byte* output) {
    const int count = static_cast<int>(operation.count);
    const MPI_Datatype type = datatype_of(operation.dtype);
    const CallMonitor::InCall in_call(call_monitor());
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_SUCCESS;
    switch (operation.kind) {
      case OperationKind::all_reduce:
        code = MPI_Iallreduce(MPI_IN_PLACE, output, count, type, operators_.of(operation.dtype, operation.op),
                              collectives_, &request);
        break;
      case OperationKind::reduce_scatter:
        code = MPI_Ireduce_scatter_block(input, output, count, type, operators_.of(operation.dtype, operation.op),
                                         collectives_, &request);
        break;
      case OperationKind::all_gather:
        code = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, output, count, type, collectives_, &request);
        break;
      case OperationKind::broadcast:
        code = MPI_Ibcast(output, count, type, operation.root, collectives_, &request);
        break;
      case OperationKind::barrier: code = MPI_Ibarrier(collectives_, &request); break;
      case OperationKind::send:
      case OperationKind::recv:
      case OperationKind::send_recv:
      case OperationKind::reduce:
      case OperationKind::gather:
      case OperationKind::scatter:
      case OperationKind::all_to_all:
      case OperationKind::all_gather_v:
      case OperationKind::reduce_scatter_v:
      case OperationKind::all_to_all_v:
      case OperationKind::gather_v:
      case OperationKind::scatter_v:
      case OperationKind::none: throw_error(Errc::unsupported, "MPI has no collective for {}", {name(operation.kind)});
    }
    check(code, "a collective of MPI's own");
    return started(request, -1, false);
  }

  MPI_Comm collectives_ = MPI_COMM_NULL;
  Operators operators_;
};

static_assert(message_passing::CarriesCollectives<CollectiveEndpoint>);

}  // namespace DTRAIN_NAMESPACE::backend::mpi

#endif  // DTRAIN_WITH_MPI
