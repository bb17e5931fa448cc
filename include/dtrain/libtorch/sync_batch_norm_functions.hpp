#pragma once
/// @file
/// Autograd functions of a SyncBatchNorm: normalise with all ranks' statistics, by one collective a pass.

#include <torch/torch.h>

#include <cstdint>
#include <dtrain/dtrain.hpp>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "dtrain/libtorch/modules.hpp"
#include "dtrain/libtorch/stream_order.hpp"

namespace DTRAIN_NAMESPACE::libtorch {

namespace detail {

/// All dimensions but that of the channels.
inline std::vector<std::int64_t> other_dimensions(const torch::Tensor& tensor) {
  std::vector<std::int64_t> others{0};
  for (std::int64_t i = 2; i < tensor.dim(); ++i) {
    others.push_back(i);
  }
  return others;
}

/// Sums over all dimensions but that of the channels, in f64.
inline torch::Tensor channel_sums(const torch::Tensor& tensor) {
  return tensor.to(torch::kFloat64).sum(other_dimensions(tensor));
}

/// One value a channel, to be combined with an input of `dimensions` dimensions.
inline torch::Tensor per_channel(const torch::Tensor& values, std::int64_t dimensions) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(dimensions), 1);
  shape[1] = -1;
  return values.view(shape);
}

template <class Group>
void sum_over_ranks(const Group& group, const torch::Tensor& values) {
  if (group.world_size() > 1) all_reduce_in_order(group, values, ReduceOp::sum);
}

/// Keeps the group for the backward pass, which may come after the module's end.
template <class Group>
struct KeptGroup final : torch::CustomClassHolder {
  explicit KeptGroup(std::shared_ptr<Group> kept) : group(std::move(kept)) {}

  static void keep(torch::autograd::AutogradContext& context, std::shared_ptr<Group> group) {
    context.saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<KeptGroup>(std::move(group)));
  }
  static std::shared_ptr<Group> of(torch::autograd::AutogradContext& context) {
    const auto kept = context.saved_data["group"].toCapsule();
    return static_cast<const KeptGroup&>(*kept).group;
  }

  std::shared_ptr<Group> group;
};

/// Returns `gradient`, and rejects derivatives by the tensors that it was computed from.
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
    KeptGroup<Group>::keep(*context, std::move(group));
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
    const torch::Tensor sums = torch::stack({channel_sums(gradient), channel_sums(gradient * normalized)});
    sum_over_ranks(*KeptGroup<Group>::of(context), sums);
    const torch::Tensor means = sums / context.saved_data["count"].toDouble();
    const auto spread = [&](const torch::Tensor& values) {
      return per_channel(values, gradient.dim()).to(gradient.dtype());
    };
    return (gradient - spread(means[0]) - normalized * spread(means[1])) * spread(inverse_deviation);
  }
};

/// Sums of a backward pass over all dimensions but that of the channels, in f32: of the gradient, and of its products
/// with `input - mean`. For 16-bit inputs: LibTorch's own kernel (2.11, as its BatchNorm of bf16) rounds products and
/// partial sums to the input's type.
inline std::pair<torch::Tensor, torch::Tensor> sums_in_f32(const torch::Tensor& gradient, const torch::Tensor& input,
                                                           const torch::Tensor& mean) {
  const std::vector<std::int64_t> others = other_dimensions(input);
  torch::Tensor products = input - per_channel(mean, input.dim());
  products.mul_(gradient);
  return {gradient.sum(others, false, torch::kFloat32), products.sum(others)};
}

/// Running statistics of a BatchNorm, undefined if it has none, and the share of the next batch in them.
struct RunningStatistics {
  torch::Tensor mean, variance;
  double share = 0;
};

/// Batch normalisation on a GPU, by the kernels that PyTorch's SyncBatchNorm calls. The host waits for nothing.
template <class Group>
struct NormalizeOnDevice : torch::autograd::Function<NormalizeOnDevice<Group>> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  /// Collective, enqueued.
  static torch::Tensor forward(Context* context, const torch::Tensor& given, const torch::Tensor& weight,
                               const torch::Tensor& bias, const RunningStatistics& running, double epsilon,
                               std::shared_ptr<Group> group) {
    const torch::Tensor input = given.contiguous(given.suggest_memory_format());
    const std::int64_t channels = input.size(1);
    const bool is_empty = input.numel() == 0;
    torch::Tensor mean, inverse_deviation;
    if (is_empty) {
      const bool is_narrow = input.element_size() == 2;
      mean = torch::zeros({channels}, is_narrow ? input.options().dtype(torch::kFloat32) : input.options());
      inverse_deviation = torch::ones_like(mean);
    } else {
      std::tie(mean, inverse_deviation) = at::batch_norm_stats(input, epsilon);
    }
    // The first rank would divide by 0; next to the others' counts this number is nothing.
    const double samples = is_empty ? 1e-30 : static_cast<double>(input.numel()) / static_cast<double>(channels);
    const torch::Tensor own = torch::cat({mean, inverse_deviation, torch::full({1}, samples, mean.options())});
    const torch::Tensor all = gathered(*group, own);
    const torch::Tensor counts = all.select(1, 2 * channels);
    const torch::Tensor running_mean = in_type_of(mean, running.mean),
                        running_variance = in_type_of(mean, running.variance);
    std::tie(mean, inverse_deviation) =
        at::batch_norm_gather_stats_with_counts(all, all.narrow(1, 0, channels), all.narrow(1, channels, channels),
                                                running_mean, running_variance, running.share, epsilon, counts);
    if (!running_mean.is_same(running.mean)) {
      torch::Tensor(running.mean).copy_(running_mean);
      torch::Tensor(running.variance).copy_(running_variance);
    }
    context->save_for_backward({input, weight, mean, inverse_deviation, counts.to(torch::kInt32)});
    context->saved_data["is_reduced"] = given.requires_grad();
    KeptGroup<Group>::keep(*context, std::move(group));
    return is_empty ? torch::empty_like(input)
                    : at::batch_norm_elemt(input, in_type_of(mean, weight), in_type_of(mean, bias), mean,
                                           inverse_deviation, epsilon);
  }

  /// Collective, enqueued.
  static Tensors backward(Context* context, const Tensors& gradients) {
    Tensors results = all_gradients(*context, gradients[0]);
    for (torch::Tensor& result : results) {
      if (torch::GradMode::is_enabled() && result.defined()) {
        result = OnceDifferentiable::apply(result, gradients[0], context->get_saved_variables()[0]);
      }
    }
    return results;
  }

 private:
  /// The ranks' statistics, a row for each rank.
  static torch::Tensor gathered(const Group& group, const torch::Tensor& own) {
    if (group.world_size() == 1) return own.unsqueeze(0);
    const torch::Tensor all = torch::empty({group.world_size(), own.numel()}, own.options());
    all_gather_in_order(group, own, all);
    return all;
  }

  static Tensors all_gradients(Context& context, const torch::Tensor& given) {
    const torch::NoGradGuard no_grad;
    const Tensors saved = context.get_saved_variables();
    const torch::Tensor &input = saved[0], &mean = saved[2], &inverse_deviation = saved[3];
    const torch::Tensor weight = in_type_of(mean, saved[1]);
    const torch::Tensor gradient = given.contiguous(input.suggest_memory_format());
    const bool is_empty = input.numel() == 0;
    torch::Tensor sum = torch::zeros_like(mean);
    torch::Tensor sum_of_products = sum, of_weight = sum, of_bias = sum, of_input;
    if (!is_empty && input.element_size() == 2) {
      std::tie(sum, sum_of_products) = sums_in_f32(gradient, input, mean);
      of_weight = sum_of_products * inverse_deviation;
      of_bias = sum;
    } else if (!is_empty) {
      std::tie(sum, sum_of_products, of_weight, of_bias) =
          at::batch_norm_backward_reduce(gradient, input, mean, inverse_deviation, weight, true, true, true);
    }
    if (context.saved_data["is_reduced"].toBool()) {
      // In f64: a topology may send f32 in 16 bits.
      const torch::Tensor sums = torch::stack({sum, sum_of_products}).to(torch::kFloat64);
      sum_over_ranks(*KeptGroup<Group>::of(context), sums);
      const torch::Tensor totals = sums.to(mean.scalar_type());
      of_input = is_empty ? torch::zeros_like(input)
                          : at::batch_norm_backward_elemt(gradient, input, mean, inverse_deviation, weight, totals[0],
                                                          totals[1], saved[4]);
    }
    return {of_input, of_weight.to(saved[1].scalar_type()), of_bias.to(saved[1].scalar_type()), {}, {}, {}};
  }

  /// `tensor`, which may be undefined, in the type of the statistics.
  static torch::Tensor in_type_of(const torch::Tensor& statistics, const torch::Tensor& tensor) {
    return tensor.defined() ? tensor.to(statistics.scalar_type()) : tensor;
  }
};

}  // namespace detail

}  // namespace DTRAIN_NAMESPACE::libtorch
