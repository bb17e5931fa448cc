#pragma once
/// @file
/// Selection of BucketReduction's gradient copier and of the class that measures norms, by the communicator's stream.

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"
#include "dtrain/ddp/reduction/host_gradient_copier.hpp"

#if DTRAIN_WITH_CUDA
#include "dtrain/ddp/reduction/cuda/cuda_bucket_norms.hpp"
#include "dtrain/ddp/reduction/cuda/cuda_gradient_copier.hpp"
#endif

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

template <class Stream>
struct ForStream {
  using Copier = HostGradientCopier<Stream>;
  using Norms = BucketNorms;
};

#if DTRAIN_WITH_CUDA
template <>
struct ForStream<stream::cuda::StreamRef> {
  using Copier = CudaGradientCopier;
  using Norms = CudaBucketNorms;
};
#endif

}  // namespace detail

/// A class with the members of HostGradientCopier.
template <class Stream>
using GradientCopierFor = typename detail::ForStream<Stream>::Copier;

/// A class with the members of BucketNorms.
template <class Stream>
using BucketNormsFor = typename detail::ForStream<Stream>::Norms;

/// Whether steps can measure the norm: the stream is CUDA's or runs work of the host.
template <class Stream>
inline constexpr bool can_measure_norms = requires(BucketNormsFor<Stream> norms, double* sum, BufferView bucket,
                                                   Stream stream) {
  norms.enqueue(sum, bucket, stream);
};

}  // namespace DTRAIN_NAMESPACE::ddp
