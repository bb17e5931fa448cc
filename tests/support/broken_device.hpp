#pragma once
/// @file
/// break_current_device(): for programs that are built with and without the emulation of CUDA.

#if DTRAIN_EMULATED_CUDA
#include "dtrain/stream/cuda/device_guard.hpp"
#include "emulation/emulation.hpp"
#endif

namespace support {

/// Until the process ends, every later call on the thread's current device fails, where CUDA is emulated.
inline void break_current_device() {
#if DTRAIN_EMULATED_CUDA
  emulation::break_device(dtrain::stream::cuda::current_device());
#endif
}

}  // namespace support
