#pragma once
/// @file
/// TorchModel: any torch::nn::Module as a model that dtrain trains. Copy this file into your program.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#if DTRAIN_WITH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace libtorch {

/// A tensor's memory, for collectives and checkpoints, too: the elements in their order in memory, which need not be
/// that of the indices (channels_last). @throws dtrain::Error (unsupported) that begins with `name`
inline dtrain::TensorView view_of(const torch::Tensor& tensor, const std::string& name = "a tensor") {
  const auto dtype = [&] {
    switch (tensor.scalar_type()) {
      case torch::kFloat64: return dtrain::DType::f64;
      case torch::kFloat32: return dtrain::DType::f32;
      case torch::kFloat16: return dtrain::DType::f16;
      case torch::kBFloat16: return dtrain::DType::bf16;
      case torch::kInt64: return dtrain::DType::i64;
      case torch::kInt32: return dtrain::DType::i32;
      case torch::kUInt8:
      case torch::kBool: return dtrain::DType::u8;
      default: break;
    }
    throw dtrain::Error(dtrain::Errc::unsupported,
                        name + " has elements of type " + c10::toString(tensor.scalar_type()) +
                            "; dtrain takes Double, Float, Half, BFloat16, Long, Int and Byte");
  }();
  const bool is_dense = tensor.layout() == torch::kStrided && tensor.is_non_overlapping_and_dense();
  if (!is_dense || !(tensor.is_cpu() || tensor.is_cuda())) {
    throw dtrain::Error(dtrain::Errc::unsupported,
                        name + " is not dense memory of the host or a CUDA device; give its contiguous() there");
  }
  dtrain::Device device;
  if (tensor.is_cuda()) device = {dtrain::DeviceKind::cuda, static_cast<std::int32_t>(tensor.get_device())};
  const dtrain::Shape shape(std::span<const std::int64_t>(tensor.sizes().data(), tensor.sizes().size()));
  return {static_cast<std::byte*>(tensor.data_ptr()), shape, dtype, device};
}

/// Once `TorchModel model(*net); dtrain::DistributedDataParallel ddp{model, group};`, then for each batch
///
///   optimizer.zero_grad();
///   const torch::Tensor loss = ...;
///   ddp.backward([&](dtrain::Ready ready) { model.backward(loss, ready); });
///   optimizer.step();
///
/// Each parameter's .grad is a view of memory of dtrain's, zeros at first. Autograd adds to it, so that nothing is
/// copied; a bucket is on its way as soon as autograd is done with its gradients. Where they were set to none, which
/// zero_grad() of LibTorch 2 does, autograd makes tensors of its own, and each is copied once.
///
/// Parameters that need no gradient are left alone: give all ranks the same. Lifetime: borrows the module; outlives its
/// one wrapper. What moves the module's memory (to(), torch::load) comes before it is made. Threads: the one that
/// trains. For a module on a GPU it is `TorchModel<dtrain::DeviceKind::cuda>`, made and trained under one current
/// stream; that has been compiled, and has never run.
template <dtrain::DeviceKind Kind = dtrain::DeviceKind::host>
class TorchModel {
 public:
  static constexpr dtrain::DeviceKind device_kind = Kind;

  /// @throws as view_of, with the tensor's name in the module.
  explicit TorchModel(torch::nn::Module& module) {
    for (const auto& item : module.named_parameters()) {
      const torch::Tensor& value = item.value();
      const auto is_it = [&value](const Entry& entry) { return entry.value.is_same(value); };
      if (!value.requires_grad() || std::any_of(entries_.begin(), entries_.end(), is_it)) continue;  // frozen, tied
      dtrain::Parameter parameter{item.key(), view_of(value, item.key()), view_of(value, item.key())};
      parameter.gradient.data = nullptr;  // from bind_gradient on it is dtrain's
      parameters_.push_back(std::move(parameter));
      entries_.push_back({value, {}, torch::autograd::impl::grad_accumulator(value), 0});
    }
    for (const auto& item : module.named_buffers()) {
      buffers_.push_back(view_of(item.value(), item.key()));
      buffer_tensors_.push_back(item.value());
    }
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      entries_[i].hook = entries_[i].accumulator->add_post_hook(std::make_unique<Hook>(*this, i));
    }
  }
  TorchModel(const TorchModel&) = delete;
  TorchModel& operator=(const TorchModel&) = delete;

  /// The memory of the gradients was dtrain's: the parameters have none afterwards.
  ~TorchModel() {
    for (Entry& entry : entries_) {
      entry.accumulator->del_post_hook(entry.hook);
      entry.value.mutable_grad().reset();
    }
  }

  const std::vector<dtrain::Parameter>& parameters() const noexcept { return parameters_; }

  /// The running statistics of BatchNorm, for example, of which every rank gets rank 0's.
  const std::vector<dtrain::TensorView>& buffers() const noexcept { return buffers_; }

  void bind_gradient(std::size_t i, const dtrain::TensorView& view) {
    Entry& entry = entries_.at(i);
    entry.gradient = torch::from_blob(view.data, entry.value.sizes(), entry.value.strides(), entry.value.options());
    entry.value.mutable_grad() = entry.gradient;
  }

  /// loss.backward(), with `ready` for each gradient that it makes. @throws what it throws, and `ready`; dtrain::Error
  /// (invalid_argument) where the module's memory has moved
  void backward(const torch::Tensor& loss, dtrain::Ready ready) {
    require_unmoved();
    ready_ = ready;
    const struct Disarm {
      std::optional<dtrain::Ready>& armed;
      ~Disarm() { armed.reset(); }
    } disarm{ready_};
    loss.backward();
    for (Entry& entry : entries_) {
      if (entry.value.grad().defined()) continue;
      bring_home(entry);  // it took no part; what others make of its gradient comes there
      if constexpr (Kind == dtrain::DeviceKind::cuda) torch::cuda::synchronize();
    }
  }

 private:
  struct Entry {
    torch::Tensor value;
    torch::Tensor gradient;                              ///< the view of dtrain's memory
    std::shared_ptr<torch::autograd::Node> accumulator;  ///< the node that adds to .grad; it lives as long as somebody
    std::uintptr_t hook;                                 ///< has it, and the hook on it with it
  };

  /// Called by autograd, in a thread of its own for each GPU, when it is done with gradient `index`.
  struct Hook final : torch::autograd::FunctionPostHook {
    Hook(TorchModel& model, std::size_t index) : model_(&model), index_(index) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list&) override {
      if (model_->ready_) model_->announce(index_);  // else the pass is none of dtrain's
      return outputs;
    }
    TorchModel* model_;
    std::size_t index_;
  };

  void announce(std::size_t index) {
    bring_home(entries_[index]);
    if constexpr (Kind == dtrain::DeviceKind::host) {
      (*ready_)(index);
    } else {
#if DTRAIN_WITH_CUDA
      const dtrain::Device device = parameters_[index].value.device;
      (*ready_)(index, {device, c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device.index)).stream()});
#endif
    }
  }

  /// Makes .grad the view of dtrain's memory, with what it holds: without a gradient, zeros.
  static void bring_home(Entry& entry) {
    torch::Tensor& gradient = entry.value.mutable_grad();
    const torch::NoGradGuard no_grad;
    if (!gradient.defined()) {
      entry.gradient.zero_();
    } else if (gradient.layout() != torch::kStrided || gradient.data_ptr() != entry.gradient.data_ptr()) {
      entry.gradient.copy_(gradient.to_dense());
    }
    gradient = entry.gradient;
  }

  /// Values and buffers that dtrain writes to are still the module's.
  void require_unmoved() const {
    const auto require = [](const torch::Tensor& tensor, const dtrain::TensorView& view) {
      if (tensor.data_ptr() == view.data) return;
      throw dtrain::Error(dtrain::Errc::invalid_argument,
                          "the memory of a torch::nn::Module has moved since its TorchModel was made; call to() and "
                          "torch::load before that");
    };
    for (std::size_t i = 0; i < entries_.size(); ++i)
      require(entries_[i].value, parameters_[i].value);
    for (std::size_t i = 0; i < buffers_.size(); ++i)
      require(buffer_tensors_[i], buffers_[i]);
  }

  std::vector<Entry> entries_;
  std::vector<dtrain::Parameter> parameters_;  ///< of the entries
  std::vector<torch::Tensor> buffer_tensors_;
  std::vector<dtrain::TensorView> buffers_;
  std::optional<dtrain::Ready> ready_;  ///< in backward()
};

}  // namespace libtorch
