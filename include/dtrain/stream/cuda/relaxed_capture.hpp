#pragma once
/// @file
/// Guard that puts this thread into CUDA's relaxed mode of stream capture.

#include "dtrain/core/config.hpp"
#include "dtrain/stream/cuda/check.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

/// While it lives this thread may ask events and allocate although another thread captures a graph, which CUDA else
/// forbids to all threads. Of one thread.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { exchange(); }

 private:
  void exchange() noexcept { static_cast<void>(quiet(cudaThreadExchangeStreamCaptureMode(&other_))); }

  cudaStreamCaptureMode other_ = cudaStreamCaptureModeRelaxed;  ///< the one that this thread does not have
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
