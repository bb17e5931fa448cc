#pragma once
/// @file
/// A stream of any kind, by its device and its native handle, for calls that user code makes without templates.

#include "dtrain/core/types/device.hpp"

namespace DTRAIN_NAMESPACE {

/// Names the stream that produced a gradient. For the host `native` is null: the work is already done when the handle
/// is passed. For CUDA it is the cudaStream_t. Lifetime: the stream outlives the step it is passed to.
struct StreamHandle {
  Device device{};
  void* native = nullptr;

  friend constexpr bool operator==(const StreamHandle&, const StreamHandle&) = default;
};

}  // namespace DTRAIN_NAMESPACE
