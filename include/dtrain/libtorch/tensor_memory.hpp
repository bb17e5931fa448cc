#pragma once
/// @file
/// Memory of LibTorch's tensors as a TensorView.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace DTRAIN_NAMESPACE::libtorch {

/// View of a tensor's memory, for collectives and checkpoints. Elements have their order in memory, which may differ
/// from the order of the indices (channels_last). A complex tensor is viewed as pairs of numbers; a tensor of more than
/// eight dimensions, as flat. @throws Error (unsupported) that begins with `name`
inline TensorView view_of(const torch::Tensor& given, const std::string& name = "a tensor") {
  if (given.layout() != torch::kStrided || !given.is_non_overlapping_and_dense() ||
      !(given.is_cpu() || given.is_cuda())) {
    throw Error(Errc::unsupported,
                name + " is not dense memory of the host or a CUDA device; give its contiguous() there");
  }
  const torch::Tensor tensor = given.is_complex() ? torch::view_as_real(given.detach()) : given;
  const auto dtype = [&] {
    switch (tensor.scalar_type()) {
      case torch::kFloat64: return DType::f64;
      case torch::kFloat32: return DType::f32;
      case torch::kFloat16: return DType::f16;
      case torch::kBFloat16: return DType::bf16;
      case torch::kInt64: return DType::i64;
      case torch::kInt32: return DType::i32;
      case torch::kUInt8:
      case torch::kBool: return DType::u8;
      default: break;
    }
    throw Error(Errc::unsupported,
                name + " has elements of type " + c10::toString(tensor.scalar_type()) +
                    "; dtrain takes Double, Float, Half, BFloat16, Long, Int, Byte and complex ones");
  }();
  Device device;
  if (tensor.is_cuda()) device = {DeviceKind::cuda, static_cast<std::int32_t>(tensor.get_device())};
  const std::int64_t flat = tensor.numel();
  const bool fits = static_cast<std::size_t>(tensor.dim()) <= Shape::max_rank;
  const Shape shape(fits ? std::span<const std::int64_t>(tensor.sizes().data(), tensor.sizes().size())
                         : std::span<const std::int64_t>(&flat, 1));
  return {static_cast<std::byte*>(tensor.data_ptr()), shape, dtype, device};
}

/// A tensor of a module, with its name there.
struct ModuleTensor {
  std::string name;
  torch::Tensor tensor;
};

}  // namespace DTRAIN_NAMESPACE::libtorch
