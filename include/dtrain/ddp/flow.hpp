#pragma once
/// @file
/// Which Flow brings gradients to a communicator's stream.

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/cuda_flow.hpp"
#include "dtrain/ddp/host_flow.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

template <class Stream>
struct FlowFor {
  using type = HostFlow<Stream>;
};

#if DTRAIN_WITH_CUDA
template <>
struct FlowFor<stream::cuda::StreamRef> {
  using type = CudaFlow;
};
#endif

}  // namespace detail

/// A model of what HostFlow shows.
template <class Stream>
using FlowOn = typename detail::FlowFor<Stream>::type;

}  // namespace DTRAIN_NAMESPACE::ddp
