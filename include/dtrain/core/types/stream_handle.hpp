#pragma once
/// @file
/// StreamHandle: a stream of any kind as its device and native handle, for interfaces without templates.

#include "dtrain/core/types/device.hpp"

namespace DTRAIN_NAMESPACE {

/// Identifies the stream that produced a gradient. For the host `native` is null: the work is done when the handle is
/// passed. For CUDA it is the cudaStream_t. Lifetime: the stream outlives the step that it is passed to.
struct StreamHandle {
  Device device{};
  void* native = nullptr;

  friend constexpr bool operator==(const StreamHandle&, const StreamHandle&) = default;
};

}  // namespace DTRAIN_NAMESPACE
