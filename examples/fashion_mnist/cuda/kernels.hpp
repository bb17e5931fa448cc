#pragma once
/// @file
/// The kernels of the network that cuBLAS does not have, callable from plain C++.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

/// All arrays are in device memory, row-major, one sample a row. Enqueued on `stream`; what the launch says is the
/// caller's to check (cudaGetLastError).
namespace fashion_mnist::kernels {

/// outputs[row, k] += bias[k]; then, where `activate`, x for x > 0, else exp(x) - 1.
void add_bias(float* outputs, const float* bias, int rows, int columns, bool activate, cudaStream_t stream);

/// Scores become the derivative of the mean cross-entropy by them: (softmax - target) / rows.
void softmax_minus_target(float* scores, const std::uint8_t* labels, int rows, int columns, cudaStream_t stream);

/// activated = error times the slope, which the activated value tells: 1 above zero, else 1 + value.
void times_slope(const float* error, float* activated, std::size_t count, cudaStream_t stream);

/// v = momentum v + g; value -= rate (g + momentum v).
void nesterov(float* value, const float* gradient, float* velocity, std::size_t count, float rate, float momentum,
              cudaStream_t stream);

}  // namespace fashion_mnist::kernels
