#pragma once
/// @file
/// SyncBatchNorm: LibTorch batch normalisation over all ranks' samples. convert_sync_batchnorm(): puts it in place of
/// BatchNorms.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/libtorch/modules.hpp"
#include "dtrain/libtorch/stream_order.hpp"
#include "dtrain/libtorch/sync_batch_norm_functions.hpp"

namespace DTRAIN_NAMESPACE::libtorch {

/// Batch normalisation as torch::nn::BatchNorm1d, 2d and 3d, with the same options, over the samples of all ranks of
/// `group`. Each forward pass makes one all-reduce (on a GPU an all-gather), and each backward pass one. In evaluation
/// with running statistics a rank communicates nothing. Parameters and buffers have BatchNorm's names. The output has
/// the input's type; statistics of 16-bit inputs are f32. clone() gives the copy the same group.
/// Without a group it is a BatchNorm of this rank's samples, until convert_sync_batchnorm gives it one.
/// Collective: forward in training, or without running statistics, and its backward pass; every rank calls them in the
/// same order. Blocking on the host; enqueued on a GPU, where a batch of one value for each channel on several ranks
/// together is not rejected, and makes the running variance infinite. A second derivative in training is rejected:
/// Error (unsupported) from the pass that needs it.
/// @ingroup libtorch
template <class P>
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl<P>> {
 public:
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& wanted) : options(wanted) { reset(); }
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& wanted, ProcessGroup<P> group) : SyncBatchNormImpl(wanted) {
    set_group(std::move(group));
  }

  /// Makes the tensors anew, for the constructor and clone().
  void reset() override {
    if (options.affine()) {
      weight = this->register_parameter("weight", torch::ones({options.num_features()}));
      bias = this->register_parameter("bias", torch::zeros({options.num_features()}));
    }
    if (options.track_running_stats()) {
      running_mean = this->register_buffer("running_mean", torch::zeros({options.num_features()}));
      running_var = this->register_buffer("running_var", torch::ones({options.num_features()}));
      num_batches_tracked = this->register_buffer("num_batches_tracked", torch::zeros({}, torch::kInt64));
    }
  }

  /// Later forward passes are those of `group`. The backward pass of an earlier forward pass uses the earlier group.
  void set_group(ProcessGroup<P> group) { group_ = std::make_shared<ProcessGroup<P>>(std::move(group)); }
  bool has_group() const noexcept { return group_ != nullptr; }

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
    const bool uses_running = !this->is_training() && running_mean.defined();
    if (uses_running || !group_) {
      const double share = this->is_training() && running_mean.defined() ? next_share() : 0;
      return torch::batch_norm(input, weight, bias, running_mean, running_var, !uses_running, share, options.eps(),
                               false);
    }
    if constexpr (detail::kind_of<P> == DeviceKind::cuda) {
      if (input.is_cuda()) return forward_on_device(input);
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
        refuse_small_batch();
      }
      mean = sums.narrow(0, 0, channels) / count;
      variance = (sums.narrow(0, channels, channels) / count - mean * mean).clamp_min(0);
      if (this->is_training() && running_mean.defined()) {
        update_running(mean, variance, count);
      }
    }
    // A normalised value in 16 bits would be rounded before weight and bias are applied.
    const bool is_wide = input.is_floating_point() && input.element_size() > 2;
    const torch::Tensor wide = is_wide ? input : input.to(torch::kFloat32);
    torch::Tensor output = detail::NormalizeOverRanks<ProcessGroup<P>>::apply(
        wide, mean, (variance + options.eps()).rsqrt(), count, group_);
    if (weight.defined()) {
      const auto spread = [&](const torch::Tensor& values) {
        return detail::per_channel(values.to(wide.scalar_type()), input.dim());
      };
      output = output * spread(weight) + spread(bias);
    }
    return input.is_floating_point() ? output.to(input.scalar_type()) : output;
  }

  torch::nn::BatchNormOptions options;
  torch::Tensor weight, bias, running_mean, running_var, num_batches_tracked;

 private:
  [[noreturn]] static void refuse_small_batch() {
    throw Error(Errc::invalid_argument,
                "SyncBatchNorm needs more than one value for each channel over all ranks; give larger batches");
  }

  torch::Tensor forward_on_device(const torch::Tensor& input) {
    static_assert(backend::CanAllGather<typename P::ChannelBackend::Communicator>,
                  "dtrain: SyncBatchNorm on a GPU gathers each rank's statistics: the backend needs AllGather "
                  "(dtrain/backend/operations.hpp)");
    if (group_->world_size() == 1 && input.numel() < 2 * input.size(1)) {
      refuse_small_batch();
    }
    detail::RunningStatistics running;
    if (this->is_training() && running_mean.defined()) {
      const double share = next_share();
      running = {running_mean, running_var, share};
    }
    const auto constant = [&](const torch::Tensor& parameter, double value) {
      return parameter.defined() ? parameter
                                 : torch::full({input.size(1)}, value, input.options().requires_grad(false));
    };
    return detail::NormalizeOnDevice<ProcessGroup<P>>::apply(input, constant(weight, 1), constant(bias, 0), running,
                                                             options.eps(), group_);
  }

  /// Counts a batch. @returns its share in the running statistics. Blocking on a GPU if the share is 1 / batches.
  double next_share() {
    num_batches_tracked += 1;
    return options.momentum() ? *options.momentum()
                              : 1.0 / static_cast<double>(num_batches_tracked.template item<std::int64_t>());
  }

  void update_running(const torch::Tensor& mean, const torch::Tensor& variance, double count) {
    const double share = next_share();
    running_mean.mul_(1 - share).add_(mean.to(running_mean.dtype()), share);
    running_var.mul_(1 - share).add_((variance * (count / (count - 1))).to(running_var.dtype()), share);
  }

  std::shared_ptr<ProcessGroup<P>> group_;  ///< null: none yet
};

/// Holder of a SyncBatchNormImpl, for members: `SyncBatchNorm<Policy> norm = register_module("norm",
/// SyncBatchNorm<Policy>(64))`, to which convert_sync_batchnorm gives the group; or `SyncBatchNorm(64, group)`.
/// @ingroup libtorch
template <class P>
class SyncBatchNorm : public torch::nn::ModuleHolder<SyncBatchNormImpl<P>> {
 public:
  using torch::nn::ModuleHolder<SyncBatchNormImpl<P>>::ModuleHolder;
};

template <class P>
SyncBatchNorm(const torch::nn::BatchNormOptions&, ProcessGroup<P>) -> SyncBatchNorm<P>;

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

namespace detail {

/// Puts `made` in the place of the element of `elements` that is `child`. @returns false if none is
template <class Container, class ModuleOf, class Replace>
bool replace_element(Container& elements, const torch::nn::Module* child, ModuleOf module_of, Replace replace) {
  for (auto element = elements.begin(); element != elements.end(); ++element) {
    if (module_of(*element) != child) continue;
    replace(*element);
    return true;
  }
  return false;
}

/// Puts `made` in the place of the child `name` of a container. @returns false if `module` is no container, or the
/// child is a member of a container's class
inline bool replace_child(torch::nn::Module& module, const std::string& name, const torch::nn::Module* child,
                          const torch::nn::AnyModule& made) {
  bool is_replaced = false;
  if (auto* const sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module)) {
    is_replaced = replace_element(
        *sequential, child, [](const torch::nn::AnyModule& element) { return element.ptr().get(); },
        [&](torch::nn::AnyModule& element) { element = made; });
  } else if (auto* const list = dynamic_cast<torch::nn::ModuleListImpl*>(&module)) {
    is_replaced = replace_element(
        *list, child, [](const auto& element) { return element.get(); }, [&](auto& element) { element = made.ptr(); });
  } else if (auto* const dictionary = dynamic_cast<torch::nn::ModuleDictImpl*>(&module)) {
    is_replaced = replace_element(
        *dictionary, child, [](const auto& element) { return element.value().get(); },
        [&](auto& element) { element.value() = made.ptr(); });
  }
  if (is_replaced) module.replace_module(name, made.ptr());
  return is_replaced;
}

}  // namespace detail

/// Gives each SyncBatchNorm in `module` the group, and replaces each BatchNorm in its Sequentials, ModuleLists and
/// ModuleDicts by a SyncBatchNorm with the same tensors, so that optimizers stay valid. Call it before the module is
/// wrapped. In an elastic job call it in the function of train(), which gets another group for each set of ranks.
/// A BatchNorm that is a member of a module cannot be replaced, because the module calls the member. Declare the member
/// as SyncBatchNorm. A child of a ModuleList is then `list[i]->as<dtrain::libtorch::SyncBatchNorm<Policy>>()`.
/// @throws Error (unsupported) that names a BatchNorm in a member
/// @ingroup libtorch
template <class P>
void convert_sync_batchnorm(torch::nn::Module& module, const ProcessGroup<P>& group, const std::string& prefix = "") {
  if (auto* const synchronized = dynamic_cast<SyncBatchNormImpl<P>*>(&module)) {
    synchronized->set_group(group);
    return;
  }
  const auto children = module.named_children();
  for (std::size_t i = 0; i < children.size(); ++i) {
    const std::string name = prefix + children[i].key();
    const auto made = detail::synchronized(*children[i].value(), group);
    if (!made) {
      convert_sync_batchnorm(*children[i].value(), group, name + ".");
    } else if (!detail::replace_child(module, children[i].key(), children[i].value().get(),
                                      torch::nn::AnyModule(made))) {
      throw Error(Errc::unsupported, "the BatchNorm '" + name +
                                         "' is a member of a module and cannot be replaced; declare it as "
                                         "dtrain::libtorch::SyncBatchNorm<Policy>, which takes the same options");
    }
  }
}

namespace detail {

/// @throws Error (invalid_argument) that names a SyncBatchNorm without a group
template <class P>
void require_groups(const Modules& modules) {
  for (const auto& module : modules) {
    for (const auto& item : module->named_modules()) {
      const auto* const found = dynamic_cast<const SyncBatchNormImpl<P>*>(item.value().get());
      if (found != nullptr && !found->has_group()) {
        throw Error(Errc::invalid_argument, "the SyncBatchNorm '" + item.key() +
                                                "' has no group; call convert_sync_batchnorm(*net, group) before the "
                                                "module is wrapped");
      }
    }
  }
}

/// For a step without data. @throws Error (unsupported) that names a SyncBatchNorm that would communicate
template <class P>
void require_no_statistics_of_all_ranks(const Modules& modules) {
  for (const auto& module : modules) {
    for (const auto& item : module->named_modules()) {
      const auto* const found = dynamic_cast<const SyncBatchNormImpl<P>*>(item.value().get());
      if (found != nullptr && (found->is_training() || !found->running_mean.defined())) {
        throw Error(Errc::unsupported, "a step without data was made with the SyncBatchNorm '" + item.key() +
                                           "', whose passes communicate; give all ranks the same number of steps "
                                           "(DistributedSampler), or use torch::nn::BatchNorm");
      }
    }
  }
}

}  // namespace detail

}  // namespace DTRAIN_NAMESPACE::libtorch
