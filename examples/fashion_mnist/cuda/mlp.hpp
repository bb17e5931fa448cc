#pragma once
/// @file
/// The network of ../mlp.hpp on a CUDA device: matrix products by cuBLAS, the rest by the kernels beside it.

#include <cublas_v2.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../mlp.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/ready.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/cuda/stream.hpp"
#include "host_copies.hpp"
#include "kernels.hpp"
#include "sgd.hpp"

namespace fashion_mnist {

/// @throws dtrain::Error unless `status` is success
inline void check_cublas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw dtrain::Error(dtrain::Errc::unsupported, std::string(call) + ": " + cublasGetStatusString(status));
  }
}

/// cuBLAS on one stream. A row-major matrix is its transpose to cuBLAS, which counts in columns: the products below
/// are written the other way round. Plain f32: no TF32.
class Blas {
 public:
  explicit Blas(cudaStream_t stream) {
    check_cublas(cublasCreate(&handle_), "cublasCreate");
    check_cublas(cublasSetStream(handle_, stream), "cublasSetStream");
    check_cublas(cublasSetMathMode(handle_, CUBLAS_PEDANTIC_MATH), "cublasSetMathMode");
  }
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;
  ~Blas() { static_cast<void>(cublasDestroy(handle_)); }

  /// c [m, n] = a [m, k] b [k, n].
  void product(const float* a, const float* b, float* c, int m, int k, int n) {
    multiply(CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, b, n, a, k, c, n);
  }
  /// c [k, n] = transpose of a [m, k] times b [m, n].
  void product_of_transpose(const float* a, const float* b, float* c, int m, int k, int n) {
    multiply(CUBLAS_OP_N, CUBLAS_OP_T, n, k, m, b, n, a, k, c, n);
  }
  /// c [m, k] = a [m, n] times the transpose of b [k, n].
  void product_with_transpose(const float* a, const float* b, float* c, int m, int k, int n) {
    multiply(CUBLAS_OP_T, CUBLAS_OP_N, k, m, n, b, n, a, n, c, k);
  }
  /// sums [n] = those of the columns of a [m, n]. @param ones m of them
  void column_sums(const float* a, const float* ones, float* sums, int m, int n) {
    const float one = 1;
    const float zero = 0;
    check_cublas(cublasSgemv(handle_, CUBLAS_OP_N, n, m, &one, a, n, ones, 1, &zero, sums, 1), "cublasSgemv");
  }

 private:
  void multiply(cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, const float* a, int lda,
                const float* b, int ldb, float* c, int ldc) {
    const float one = 1;
    const float zero = 0;
    check_cublas(cublasSgemm(handle_, op_a, op_b, m, n, k, &one, a, lda, b, ldb, &zero, c, ldc), "cublasSgemm");
  }

  cublasHandle_t handle_ = nullptr;
};

/// As BasicMlp<float>, with the same first parameters for the same seed. Work goes to a stream of its own; forward()
/// waits for the scores, backward() for nothing. On the thread's current device.
class CudaMlp {
 public:
  using Optimizer = CudaSgd;
  static constexpr dtrain::DeviceKind device_kind = dtrain::DeviceKind::cuda;

  CudaMlp(std::span<const Eigen::Index> widths, std::uint64_t seed) : blas_(stream().native()) {
    BasicMlp<float> first(widths, seed);
    const std::vector<dtrain::Parameter> parameters = first.parameters();
    for (std::size_t i = 0; i + 1 < parameters.size(); i += 2) {
      layers_.emplace_back(parameters[i], parameters[i + 1], stream());
    }
  }

  std::vector<dtrain::Parameter> parameters() {
    std::vector<dtrain::Parameter> list;
    for (Layer& layer : layers_) {
      list.push_back(layer.weight.parameter(stream().device()));
      list.push_back(layer.bias.parameter(stream().device()));
    }
    return list;
  }

  /// Gradient `index` lives at `view` from now on. Lifetime: its memory outlives the last backward().
  void bind_gradient(std::size_t index, const dtrain::TensorView& view) {
    Layer& layer = layers_.at(index / 2);
    Tensor& tensor = index % 2 == 0 ? layer.weight : layer.bias;
    tensor.gradient = reinterpret_cast<float*>(view.data);
    tensor.own_gradient = {};
  }

  /// The scores of each class for each row of `inputs`; valid until the next call. What backward() needs is kept.
  /// Blocking: until they have come from the device.
  const Matrix<float>& forward(const Matrix<float>& inputs) {
    const int rows = static_cast<int>(inputs.rows());
    reserve(rows);
    copy(inputs_.data(), inputs.data(), static_cast<std::size_t>(inputs.size()) * sizeof(float));
    const float* previous = floats(inputs_);
    for (Layer& layer : layers_) {
      blas_.product(previous, floats(layer.weight.value), floats(layer.output), rows, layer.inputs, layer.outputs);
      const bool is_last = &layer == &layers_.back();
      kernels::add_bias(floats(layer.output), floats(layer.bias.value), rows, layer.outputs, !is_last, native());
      check_launch();
      previous = floats(layer.output);
    }
    scores_.resize(rows, layers_.back().outputs);
    copy(scores_.data(), previous, static_cast<std::size_t>(scores_.size()) * sizeof(float));
    dtrain::stream::cuda::check(cudaStreamSynchronize(native()), "cudaStreamSynchronize");
    return scores_;
  }

  /// Enqueues the gradients of the mean cross-entropy over `batch`, which the last forward() was given, and says
  /// `ready(i, stream)` of each at its place in the stream.
  void backward(const Batch<float>& batch, dtrain::Ready ready) {
    const int rows = static_cast<int>(batch.labels.size());
    copy(labels_.data(), batch.labels.data(), batch.labels.size());
    float* error = floats(layers_.back().output);  // from here on: of a layer's output, the loss's derivative by it
    kernels::softmax_minus_target(error, reinterpret_cast<const std::uint8_t*>(labels_.data()), rows,
                                  layers_.back().outputs, native());
    check_launch();
    for (std::size_t k = layers_.size(); k-- > 0;) {
      Layer& layer = layers_[k];
      const float* const inputs = k == 0 ? floats(inputs_) : floats(layers_[k - 1].output);
      blas_.product_of_transpose(inputs, error, layer.weight.gradient, rows, layer.inputs, layer.outputs);
      ready(2 * k, stream().handle());
      blas_.column_sums(error, floats(ones_), layer.bias.gradient, rows, layer.outputs);
      ready(2 * k + 1, stream().handle());
      if (k == 0) break;
      blas_.product_with_transpose(error, floats(layer.weight.value), floats(input_error_), rows, layer.inputs,
                                   layer.outputs);
      error = floats(layers_[k - 1].output);
      const std::size_t count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(layer.inputs);
      kernels::times_slope(floats(input_error_), error, count, native());
      check_launch();
    }
  }

  /// Says that gradient `index` is ready, which was not computed anew.
  void announce(std::size_t index, dtrain::Ready ready) const { ready(index, stream().handle()); }

  /// Blocking: until what was enqueued is done.
  void block_until_done() const {
    dtrain::stream::cuda::check(cudaStreamSynchronize(native()), "cudaStreamSynchronize");
  }

  Optimizer optimizer(float momentum) const { return {momentum, stream()}; }

  /// Copies the elements of a parameter's value. Blocking.
  void read(const dtrain::TensorView& value, std::span<std::byte> to) const {
    copy(to.data(), value.data, to.size());
    block_until_done();
  }

  /// The values, for a checkpoint, in memory of the host; take_saved() after it was written to. Blocking.
  std::vector<dtrain::NamedTensor> saved() {
    std::vector<std::pair<std::string, dtrain::TensorView>> values;
    for (const dtrain::Parameter& parameter : parameters()) {
      values.emplace_back(parameter.name, parameter.value);
    }
    return saved_.fetch(std::move(values), stream());
  }
  void take_saved() const { saved_.put_back(stream()); }

  void add_to_first_gradient(float change) {
    float first = 0;
    copy(&first, layers_.front().weight.gradient, sizeof first);
    block_until_done();
    first += change;
    copy(layers_.front().weight.gradient, &first, sizeof first);
    block_until_done();
  }

  dtrain::stream::cuda::StreamRef stream() const noexcept { return stream_.ref(); }

 private:
  using DeviceBuffer = dtrain::stream::cuda::DeviceBuffer;

  struct Tensor {
    /// Blocking: the value is on the device then.
    Tensor(const dtrain::Parameter& host, dtrain::stream::cuda::StreamRef stream)
        : name(host.name),
          shape(host.value.shape),
          value(host.value.bytes()),
          own_gradient(host.value.bytes()),
          gradient(floats(own_gradient)) {
      dtrain::stream::cuda::check(
          cudaMemcpyAsync(value.data(), host.value.data, value.bytes(), cudaMemcpyHostToDevice, stream.native()),
          "cudaMemcpyAsync of a parameter");
      dtrain::stream::cuda::check(cudaStreamSynchronize(stream.native()), "cudaStreamSynchronize");
    }

    dtrain::Parameter parameter(dtrain::Device device) const {
      return {name,
              {value.data(), shape, dtrain::DType::f32, device},
              {reinterpret_cast<std::byte*>(gradient), shape, dtrain::DType::f32, device}};
    }

    std::string name;
    dtrain::Shape shape;
    DeviceBuffer value;
    DeviceBuffer own_gradient;  ///< until bind_gradient
    float* gradient;
  };

  struct Layer {
    Layer(const dtrain::Parameter& host_weight, const dtrain::Parameter& host_bias,
          dtrain::stream::cuda::StreamRef stream)
        : weight(host_weight, stream),
          bias(host_bias, stream),
          inputs(static_cast<int>(host_weight.value.shape.extents()[0])),
          outputs(static_cast<int>(host_weight.value.shape.extents()[1])) {}

    Tensor weight;
    Tensor bias;
    DeviceBuffer output;
    int inputs;
    int outputs;
  };

  static float* floats(const DeviceBuffer& buffer) noexcept { return reinterpret_cast<float*>(buffer.data()); }

  cudaStream_t native() const noexcept { return stream().native(); }

  static void check_launch() { dtrain::stream::cuda::check(cudaGetLastError(), "launching a kernel"); }

  void copy(void* to, const void* from, std::size_t bytes) const {
    dtrain::stream::cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native()), "cudaMemcpyAsync");
  }

  /// Room for batches of `rows` samples. Blocking where it grows.
  void reserve(int rows) {
    if (rows <= rows_) return;
    dtrain::stream::cuda::check(cudaStreamSynchronize(native()), "cudaStreamSynchronize");
    const auto room = [rows](int columns) {
      return DeviceBuffer(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns) * sizeof(float));
    };
    int widest = 0;
    for (Layer& layer : layers_) {
      layer.output = room(layer.outputs);
      widest = std::max(widest, layer.inputs);
    }
    inputs_ = room(layers_.front().inputs);
    input_error_ = room(widest);
    labels_ = DeviceBuffer(static_cast<std::size_t>(rows));
    ones_ = room(1);
    const std::vector<float> ones(static_cast<std::size_t>(rows), 1.0F);
    copy(ones_.data(), ones.data(), ones_.bytes());
    block_until_done();
    rows_ = rows;
  }

  dtrain::stream::cuda::Stream stream_;
  Blas blas_;
  std::vector<Layer> layers_;
  DeviceBuffer inputs_;
  DeviceBuffer input_error_;
  DeviceBuffer labels_;
  DeviceBuffer ones_;
  Matrix<float> scores_;
  HostCopies saved_;
  int rows_ = 0;
};

}  // namespace fashion_mnist
