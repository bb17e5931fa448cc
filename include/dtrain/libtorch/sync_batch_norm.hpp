#pragma once
/// @file
/// SyncBatchNorm: batch normalisation with the statistics of all ranks' samples.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/libtorch/tensor_memory.hpp"

namespace DTRAIN_NAMESPACE::libtorch {

namespace detail {

/// Sums over all dimensions but that of the channels, in f64.
inline torch::Tensor channel_sums(const torch::Tensor& tensor) {
  std::vector<std::int64_t> others{0};
  for (std::int64_t i = 2; i < tensor.dim(); ++i) {
    others.push_back(i);
  }
  return tensor.to(torch::kFloat64).sum(others);
}

/// One value a channel, to be combined with an input of `dimensions` dimensions.
inline torch::Tensor per_channel(const torch::Tensor& values, std::int64_t dimensions) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(dimensions), 1);
  shape[1] = -1;
  return values.view(shape);
}

template <class Group>
void sum_over_ranks(const Group& group, const torch::Tensor& values) {
  if (group.world_size() == 1) {
    return;
  }
  finish_device_work(values);
  group.all_reduce(view_of(values).flat(), ReduceOp::sum);
  finish_device_work(values);
}

/// Keeps the group for the backward pass, which may come after the module's end.
template <class Group>
struct KeptGroup final : torch::CustomClassHolder {
  explicit KeptGroup(std::shared_ptr<Group> kept) : group(std::move(kept)) {}
  std::shared_ptr<Group> group;
};

/// Returns `gradient`, and refuses derivatives by the tensors that it was computed from.
struct OnceDifferentiable : torch::autograd::Function<OnceDifferentiable> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& gradient, const torch::Tensor&,
                               const torch::Tensor&) {
    return gradient.view_as(gradient);
  }
  [[noreturn]] static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                              const torch::autograd::variable_list&) {
    throw Error(
        Errc::unsupported,
        "SyncBatchNorm has no second derivative, and this loss has a gradient of it (torch::autograd::grad with "
        "create_graph); use torch::nn::BatchNorm, or leave that gradient out of the loss");
  }
};

/// (input - mean) / sqrt(variance + epsilon), with a backward pass that all-reduces once.
template <class Group>
struct NormalizeOverRanks : torch::autograd::Function<NormalizeOverRanks<Group>> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& input,
                               const torch::Tensor& mean, const torch::Tensor& inverse_deviation, double count,
                               std::shared_ptr<Group> group) {
    const torch::Tensor normalized = ((input - per_channel(mean, input.dim()).to(input.dtype())) *
                                      per_channel(inverse_deviation, input.dim()).to(input.dtype()));
    context->save_for_backward({normalized, inverse_deviation});
    context->saved_data["count"] = count;
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<KeptGroup<Group>>(std::move(group)));
    return normalized;
  }

  /// Collective, blocking.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    torch::Tensor result = input_gradient(*context, gradients[0], saved[0], saved[1]);
    if (torch::GradMode::is_enabled()) result = OnceDifferentiable::apply(result, gradients[0], saved[0]);
    return {result, {}, {}, {}, {}};
  }

 private:
  static torch::Tensor input_gradient(torch::autograd::AutogradContext& context, const torch::Tensor& gradient,
                                      const torch::Tensor& normalized, const torch::Tensor& inverse_deviation) {
    const torch::NoGradGuard no_grad;
    const auto kept = context.saved_data["group"].toCapsule();
    const torch::Tensor sums = torch::stack({channel_sums(gradient), channel_sums(gradient * normalized)});
    sum_over_ranks(*static_cast<const KeptGroup<Group>&>(*kept).group, sums);
    const torch::Tensor means = sums / context.saved_data["count"].toDouble();
    const auto spread = [&](const torch::Tensor& values) {
      return per_channel(values, gradient.dim()).to(gradient.dtype());
    };
    return (gradient - spread(means[0]) - normalized * spread(means[1])) * spread(inverse_deviation);
  }
};

}  // namespace detail

/// Batch normalisation as torch::nn::BatchNorm1d, 2d and 3d, with the same options, over the samples of all ranks of
/// `group`. Each forward pass makes one all-reduce, and each backward pass one. In evaluation with running statistics a
/// rank communicates nothing. Parameters and buffers have BatchNorm's names.
/// Collective, blocking: forward in training, or without running statistics, and its backward pass; every rank calls
/// them in the same order. A second derivative in training is refused: Error (unsupported) from the pass that needs it.
/// @ingroup libtorch
template <class P>
class SyncBatchNormImpl : public torch::nn::Module {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& wanted, ProcessGroup<P> group)
      : options(wanted), group_(std::make_shared<ProcessGroup<P>>(std::move(group))) {
    if (options.affine()) {
      weight = register_parameter("weight", torch::ones({options.num_features()}));
      bias = register_parameter("bias", torch::zeros({options.num_features()}));
    }
    if (options.track_running_stats()) {
      running_mean = register_buffer("running_mean", torch::zeros({options.num_features()}));
      running_var = register_buffer("running_var", torch::ones({options.num_features()}));
      num_batches_tracked = register_buffer("num_batches_tracked", torch::zeros({}, torch::kInt64));
    }
  }

  /// Takes over the tensors of a BatchNorm of the same options, so that optimizers stay valid.
  template <class BatchNorm>
  void adopt(const BatchNorm& other) {
    if (weight.defined()) {
      weight = this->parameters_["weight"] = other.weight;
      bias = this->parameters_["bias"] = other.bias;
    }
    if (running_mean.defined()) {
      running_mean.set_data(other.running_mean);
      running_var.set_data(other.running_var);
      num_batches_tracked.set_data(other.num_batches_tracked);
    }
    this->train(other.is_training());
  }

  /// @param input [samples, channels, ...]
  torch::Tensor forward(const torch::Tensor& input) {
    if (input.dim() < 2 || input.size(1) != options.num_features()) {
      throw Error(Errc::invalid_argument, "SyncBatchNorm needs an input of [samples, " +
                                              std::to_string(options.num_features()) + ", ...]; it has " +
                                              std::to_string(input.dim()) + " dimensions");
    }
    const bool uses_running = !is_training() && running_mean.defined();
    if (uses_running) {
      return torch::batch_norm(input, weight, bias, running_mean, running_var, false, 0, options.eps(), false);
    }
    torch::Tensor mean, variance;
    double count = 0;
    {
      const torch::NoGradGuard no_grad;
      const torch::Tensor wide = input.detach().to(torch::kFloat64);
      const torch::Tensor samples =
          torch::full({1}, static_cast<double>(input.numel()) / static_cast<double>(input.size(1)), wide.options());
      const torch::Tensor sums = torch::cat({detail::channel_sums(wide), detail::channel_sums(wide * wide), samples});
      detail::sum_over_ranks(*group_, sums);
      const std::int64_t channels = input.size(1);
      count = sums[2 * channels].template item<double>();
      if (count < 2) {
        throw Error(Errc::invalid_argument,
                    "SyncBatchNorm needs more than one value for each channel over all ranks; give larger batches");
      }
      mean = sums.narrow(0, 0, channels) / count;
      variance = (sums.narrow(0, channels, channels) / count - mean * mean).clamp_min(0);
      if (is_training() && running_mean.defined()) {
        update_running(mean, variance, count);
      }
    }
    torch::Tensor output = detail::NormalizeOverRanks<ProcessGroup<P>>::apply(
        input, mean, (variance + options.eps()).rsqrt(), count, group_);
    if (weight.defined()) {
      output = output * detail::per_channel(weight, input.dim()) + detail::per_channel(bias, input.dim());
    }
    return output;
  }

  torch::nn::BatchNormOptions options;
  torch::Tensor weight, bias, running_mean, running_var, num_batches_tracked;

 private:
  void update_running(const torch::Tensor& mean, const torch::Tensor& variance, double count) {
    num_batches_tracked += 1;
    const double share = options.momentum()
                             ? *options.momentum()
                             : 1.0 / static_cast<double>(num_batches_tracked.template item<std::int64_t>());
    running_mean.mul_(1 - share).add_(mean.to(running_mean.dtype()), share);
    running_var.mul_(1 - share).add_((variance * (count / (count - 1))).to(running_var.dtype()), share);
  }

  std::shared_ptr<ProcessGroup<P>> group_;
};

namespace detail {

/// SyncBatchNorm for `module`; null if `module` is no BatchNorm.
template <class P>
std::shared_ptr<SyncBatchNormImpl<P>> synchronized(const torch::nn::Module& module, const ProcessGroup<P>& group) {
  const auto convert = [&](const auto* batch_norm) -> std::shared_ptr<SyncBatchNormImpl<P>> {
    if (batch_norm == nullptr) {
      return nullptr;
    }
    const auto made = std::make_shared<SyncBatchNormImpl<P>>(batch_norm->options, group);
    made->adopt(*batch_norm);
    return made;
  };
  auto made = convert(dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module));
  if (!made) {
    made = convert(dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module));
  }
  if (!made) {
    made = convert(dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module));
  }
  return made;
}

}  // namespace detail

/// Replaces each BatchNorm in the Sequentials of `module` by a SyncBatchNorm with the same tensors, so that optimizers
/// stay valid. Call it before the module is wrapped. A BatchNorm in a member of a module cannot be replaced, because
/// the module calls the member. @throws Error (unsupported) that names such a member
/// @ingroup libtorch
template <class P>
void convert_sync_batchnorm(torch::nn::Module& module, const ProcessGroup<P>& group, const std::string& prefix = "") {
  auto* const sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module);
  const auto children = module.named_children();
  for (std::size_t i = 0; i < children.size(); ++i) {
    const std::string name = prefix + children[i].key();
    const auto made = detail::synchronized(*children[i].value(), group);
    if (!made) {
      convert_sync_batchnorm(*children[i].value(), group, name + ".");
      continue;
    }
    if (sequential == nullptr) {
      throw Error(Errc::unsupported, "the BatchNorm '" + name +
                                         "' is a member of a module and cannot be replaced; declare it as "
                                         "std::shared_ptr<dtrain::libtorch::SyncBatchNormImpl<Policy>>");
    }
    *(sequential->begin() + static_cast<std::ptrdiff_t>(i)) = torch::nn::AnyModule(made);
    sequential->replace_module(children[i].key(), made);
  }
}

}  // namespace DTRAIN_NAMESPACE::libtorch
