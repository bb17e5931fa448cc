#pragma once
/// @file
/// Selection of the gradient copier for a communicator's stream.

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/reduction/cuda/cuda_gradient_copier.hpp"
#include "dtrain/ddp/reduction/host_gradient_copier.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

template <class Stream>
struct SelectGradientCopier {
  using type = HostGradientCopier<Stream>;
};

#if DTRAIN_WITH_CUDA
template <>
struct SelectGradientCopier<stream::cuda::StreamRef> {
  using type = CudaGradientCopier;
};
#endif

}  // namespace detail

/// A class with the members of HostGradientCopier.
template <class Stream>
using GradientCopierFor = typename detail::SelectGradientCopier<Stream>::type;

}  // namespace DTRAIN_NAMESPACE::ddp
