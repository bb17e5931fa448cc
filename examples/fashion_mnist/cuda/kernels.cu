#include "kernels.hpp"

namespace fashion_mnist::kernels {
namespace {

constexpr unsigned threads_a_block = 256;

unsigned blocks_for(std::size_t count) {
  return static_cast<unsigned>((count + threads_a_block - 1) / threads_a_block);
}

__device__ std::size_t own_index() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__global__ void add_bias_kernel(float* outputs, const float* bias, std::size_t count, int columns, bool activate) {
  const std::size_t i = own_index();
  if (i >= count) return;
  const float x = outputs[i] + bias[i % static_cast<std::size_t>(columns)];
  outputs[i] = !activate || x > 0 ? x : expm1f(x);
}

/// A thread for each row: there are few classes.
__global__ void softmax_minus_target_kernel(float* scores, const std::uint8_t* labels, int rows, int columns) {
  const auto row = static_cast<int>(own_index());
  if (row >= rows) return;
  float* const values = scores + static_cast<std::size_t>(row) * static_cast<std::size_t>(columns);
  float highest = values[0];
  for (int k = 1; k < columns; ++k)
    highest = fmaxf(highest, values[k]);
  float sum = 0;
  for (int k = 0; k < columns; ++k)
    sum += values[k] = expf(values[k] - highest);
  const float scale = 1.0F / static_cast<float>(rows);
  for (int k = 0; k < columns; ++k)
    values[k] *= scale / sum;
  values[labels[row]] -= scale;
}

__global__ void times_slope_kernel(const float* error, float* activated, std::size_t count) {
  const std::size_t i = own_index();
  if (i >= count) return;
  const float y = activated[i];
  activated[i] = y > 0 ? error[i] : error[i] * (y + 1);
}

__global__ void nesterov_kernel(float* value, const float* gradient, float* velocity, std::size_t count, float rate,
                                float momentum) {
  const std::size_t i = own_index();
  if (i >= count) return;
  const float v = momentum * velocity[i] + gradient[i];
  velocity[i] = v;
  value[i] -= rate * (gradient[i] + momentum * v);
}

}  // namespace

void add_bias(float* outputs, const float* bias, int rows, int columns, bool activate, cudaStream_t stream) {
  const std::size_t count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  add_bias_kernel<<<blocks_for(count), threads_a_block, 0, stream>>>(outputs, bias, count, columns, activate);
}

void softmax_minus_target(float* scores, const std::uint8_t* labels, int rows, int columns, cudaStream_t stream) {
  const unsigned blocks = blocks_for(static_cast<std::size_t>(rows));
  softmax_minus_target_kernel<<<blocks, threads_a_block, 0, stream>>>(scores, labels, rows, columns);
}

void times_slope(const float* error, float* activated, std::size_t count, cudaStream_t stream) {
  times_slope_kernel<<<blocks_for(count), threads_a_block, 0, stream>>>(error, activated, count);
}

void nesterov(float* value, const float* gradient, float* velocity, std::size_t count, float rate, float momentum,
              cudaStream_t stream) {
  const unsigned blocks = blocks_for(count);
  nesterov_kernel<<<blocks, threads_a_block, 0, stream>>>(value, gradient, velocity, count, rate, momentum);
}

}  // namespace fashion_mnist::kernels
