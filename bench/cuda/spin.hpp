#pragma once
/// @file
/// Work for a GPU that takes a given time, and nothing of its memory.

#include <cuda_runtime_api.h>

#include <chrono>

namespace bench {

/// Keeps the stream busy. Enqueued. @returns whether the kernel could be started
cudaError_t enqueue_spin(cudaStream_t stream, std::chrono::nanoseconds time);

}  // namespace bench
