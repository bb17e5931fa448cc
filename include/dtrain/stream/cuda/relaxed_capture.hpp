#pragma once
/// @file
/// RelaxedCapture: guard that puts this thread into CUDA's relaxed mode of stream capture.

#include "dtrain/core/config.hpp"
#include "dtrain/stream/cuda/check.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

/// In its scope, this thread may query events and allocate although another thread captures a graph. By default CUDA
/// forbids these calls to all threads during a capture. Threads: the thread that made the object.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { exchange(); }

 private:
  void exchange() noexcept { static_cast<void>(quiet(cudaThreadExchangeStreamCaptureMode(&other_))); }

  cudaStreamCaptureMode other_ = cudaStreamCaptureModeRelaxed;  ///< the mode that this thread is not in
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
