#pragma once
/// @file
/// An operation of the inner backend, to be run on one parcel after the other.

#include <concepts>
#include <cstdint>
#include <string_view>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/staged/parcel.hpp"
#include "dtrain/core/buffer_view.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/dtype.hpp"
#include "dtrain/core/reduce_op.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

enum class Kind : std::uint8_t { all_reduce, broadcast, barrier, reduce_scatter, all_gather, exchange };

constexpr std::string_view name(Kind kind) noexcept {
  switch (kind) {
    case Kind::all_reduce: return "an all_reduce";
    case Kind::broadcast: return "a broadcast";
    case Kind::barrier: return "a barrier";
    case Kind::reduce_scatter: return "a reduce_scatter";
    case Kind::all_gather: return "an all_gather";
    case Kind::exchange: return "a send or recv";
  }
  return "an operation";
}

/// What all parcels of an operation have in common.
struct Order {
  Kind kind = Kind::barrier;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  int to = -1;  ///< of an exchange: -1 where nothing is sent, or received
  int from = -1;
};

namespace detail {

template <class C>
void start_exchange(C& inner, const Order& order, const ConstBufferView& input, const BufferView& output,
                    const Parcel& parcel, stream::host::StreamRef stream) {
  // Of two lengths the longer one goes on alone; a message without elements is one all the same.
  const bool sends = order.to >= 0 && parcel.input != nullptr;
  const bool receives = order.from >= 0 && parcel.output != nullptr;
  if (sends && receives) {
    inner.send_recv(input, order.to, output, order.from, stream);
  } else if (sends) {
    inner.send(input, order.to, stream);
  } else if (receives) {
    inner.recv(output, order.from, stream);
  }
}

}  // namespace detail

/// Enqueues the operation on a parcel's host memory. @throws what the inner communicator throws at the call
template <class C>
void start(C& inner, const Order& order, const Parcel& parcel, stream::host::StreamRef stream) {
  const ConstBufferView input{parcel.input, parcel.input_count, order.dtype};
  const BufferView output{parcel.output, parcel.output_count, order.dtype, {}};
  switch (order.kind) {
    case Kind::all_reduce: return inner.all_reduce(input, output, order.op, stream);
    case Kind::broadcast: return inner.broadcast(output, order.root, stream);
    case Kind::barrier: return inner.barrier(stream);
    case Kind::reduce_scatter:
      if constexpr (CanReduceScatter<C>) {
        inner.reduce_scatter(input, output, order.op, stream);
      }
      return;
    case Kind::all_gather:
      if constexpr (CanAllGather<C>) {
        inner.all_gather(input, output, stream);
      }
      return;
    case Kind::exchange:
      if constexpr (CanSendRecv<C>) {
        detail::start_exchange(inner, order, input, output, parcel, stream);
      }
      return;
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
