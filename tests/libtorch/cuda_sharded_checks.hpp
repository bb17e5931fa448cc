#pragma once
/// @file
/// The CUDA probe's checks of sharded optimizers: modules on a GPU get the weights that LibTorch's own optimizer gives
/// one process with the whole batch.

#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/torch.h>
#include <dtrain/dtrain.hpp>
#include <dtrain/libtorch.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda_nets.hpp"

namespace cuda_probe {

using dtrain::libtorch::BufferPolicy;
using dtrain::libtorch::GraphPolicy;

inline constexpr int sharded_steps = 20;

/// Weights with a decay, biases without one and with a larger rate.
template <class O, class Options>
O with_groups(const nn::Module& net, Options options) {
  std::vector<torch::Tensor> weights, biases;
  for (const torch::Tensor& parameter : net.parameters())
    (parameter.dim() > 1 ? weights : biases).push_back(parameter);
  Options bias_options = options;
  options.weight_decay(0.05);
  bias_options.lr(2 * options.lr());
  const auto group = [](const std::vector<torch::Tensor>& parameters, const Options& given) {
    return torch::optim::OptimizerParamGroup(parameters, std::make_unique<Options>(given));
  };
  return O(std::vector<torch::optim::OptimizerParamGroup>{group(weights, options), group(biases, bias_options)},
           options);
}

/// A scheduler's work: another rate in the second half.
template <class O, class Options>
void lower_rate(O& optimizer, int step) {
  if (step != sharded_steps / 2) return;
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    auto& options = static_cast<Options&>(group.options());
    options.lr(options.lr() / 2);
  }
}

template <class O, class Options>
std::vector<torch::Tensor> updated_alone(const Options& options, double max_norm) {
  nn::Sequential net = conv_net(false, torch::kFloat32, 7);
  O optimizer = with_groups<O>(*net, options);
  for (int step = 0; step < sharded_steps; ++step) {
    lower_rate<O, Options>(optimizer, step);
    optimizer.zero_grad();
    const Samples taken = samples(step, torch::kFloat32);
    torch::mse_loss(net->forward(taken.inputs), taken.targets).backward();
    if (max_norm != 0) nn::utils::clip_grad_norm_(net->parameters(), max_norm);
    optimizer.step();
  }
  return state_of(*net);
}

template <class O, class Group, class Options>
std::vector<torch::Tensor> updated_in_shards(const Group& group, int stage, const Options& options, double max_norm,
                                             torch::Dtype dtype = torch::kFloat32) {
  nn::Sequential net = conv_net(false, dtype, 7 + static_cast<std::uint64_t>(group.rank()));
  O own = with_groups<O>(*net, options);
  dtrain::libtorch::DistributedDataParallel ddp{net, group, {.bucket_bytes = 4096}};
  dtrain::libtorch::ShardedOptimizer optimizer{ddp, own, {.stage = stage}};
  for (int step = 0; step < sharded_steps; ++step) {
    lower_rate<O, Options>(own, step);
    const Samples taken = samples(step, dtype).part(group.rank(), group.world_size());
    const torch::Tensor loss = torch::mse_loss(ddp(taken.inputs), taken.targets);
    ddp.backward(loss, optimizer, {.clip_norm = max_norm});
  }
  return state_of(*net);
}

template <class O, class Group, class Options>
void check_sharded_class(const Group& group, Checks& checks, const std::string& name, const Options& options) {
  for (const double max_norm : {0.0, 0.5}) {
    const std::string what = name + (max_norm != 0 ? ", clipped" : "");
    const std::vector<torch::Tensor> alone = updated_alone<O>(options, max_norm);
    const auto states = updated_in_shards<O>(group, 1, options, max_norm);
    const auto gradients = updated_in_shards<O>(group, 2, options, max_norm);
    for (std::size_t i = 0; i < alone.size(); ++i)
      checks.require_close(states[i], alone[i], 1e-3, what + ": parameter " + std::to_string(i) + " is LibTorch's own");
    checks.require(is_same_everywhere(group, states), what + ": all ranks have the same bits");
    checks.require(have_same_bits(states, gradients), what + ": both stages give the same bits");
  }
  const auto in_f32 = [](std::vector<torch::Tensor> tensors) {
    for (torch::Tensor& tensor : tensors)
      tensor = tensor.to(torch::kFloat32);
    return tensors;
  };
  const std::vector<torch::Tensor> halves = in_f32(updated_in_shards<O>(group, 1, options, 0, torch::kBFloat16));
  const std::vector<torch::Tensor> other = in_f32(updated_in_shards<O>(group, 2, options, 0, torch::kBFloat16));
  const std::vector<torch::Tensor> alone = updated_alone<O>(options, 0);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    checks.require((halves[i] - alone[i]).abs().mean().item<double>() < 0.01,
                   name + " of BFloat16 is near that of Float");
  }
  checks.require(have_same_bits(halves, other), name + " of BFloat16: both stages give the same bits");
}

/// The second layer takes part on rank 0 alone, and the third one nowhere.
template <class Group>
void check_sharded_unused(const Group& group, Checks& checks) {
  for (const GraphPolicy graph : {GraphPolicy::dynamic_graph, GraphPolicy::static_graph}) {
    nn::Linear first(6, 2), second(6, 2), third(6, 2);
    for (nn::Linear module : {first, second, third})
      module->to(device());
    const dtrain::libtorch::Modules modules{first.ptr(), second.ptr(), third.ptr()};
    std::vector<torch::Tensor> parameters;
    for (nn::Linear module : {first, second, third}) {
      for (const torch::Tensor& parameter : module->parameters())
        parameters.push_back(parameter);
    }
    dtrain::libtorch::DistributedDataParallel ddp{
        modules, group, {.allow_unused_parameters = true}, BufferPolicy::rank0, graph};
    torch::optim::AdamW adamw(parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.5));
    const torch::Tensor before = third->weight.detach().clone(), second_before = second->weight.detach().clone();
    dtrain::libtorch::ShardedOptimizer optimizer{ddp, adamw};
    const torch::Tensor input = samples(0, torch::kFloat32).inputs.flatten(1).narrow(1, 0, 6);
    for (int step = 0; step < 3; ++step) {
      torch::Tensor loss = first->forward(input).mean();
      if (group.rank() == 0) loss = loss + second->forward(input).mean();
      ddp.backward(loss, optimizer);
    }
    checks.require(torch::equal(third->weight, before), "what no rank used keeps its value, without decay");
    checks.require(!torch::equal(second->weight, second_before), "what one rank used is updated");
    checks.require(optimizer.updates() == std::vector<std::int64_t>{3, 3, 3, 3, 0, 0}, "updates are each parameter's");
    checks.require(is_same_everywhere(group, {first->weight, second->weight}), "all ranks have the same values");
  }
}

/// Values that the program writes on a stream of LibTorch's pool, behind a sleep: moved ones, and in place.
template <class Group>
void check_sharded_streams(const Group& group, Checks& checks) {
  const auto train = [&](bool sleeps) {
    std::optional<c10::cuda::CUDAStreamGuard> on_pool;
    if (sleeps) on_pool.emplace(c10::cuda::getStreamFromPool());
    nn::Linear net(6, 2);
    net->to(device(), torch::kBFloat16);
    fill(*net, 3);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.25));
    dtrain::libtorch::DistributedDataParallel ddp{net, group};
    torch::NoGradGuard no_grad;
    const auto write = [&](const auto& act) {
      if (sleeps) at::cuda::sleep(long_sleep);
      for (torch::Tensor parameter : net->parameters())
        act(parameter);
    };
    write([](torch::Tensor& parameter) { parameter.mul_(2); });
    dtrain::libtorch::ShardedOptimizer optimizer{ddp, sgd};
    for (int step = 0; step < 4; ++step) {
      if (step == 2) write([](torch::Tensor& parameter) { parameter.set_data(parameter * 0.5); });
      const torch::AutoGradMode with_grad(true);
      const torch::Tensor input = samples(step, torch::kFloat32).inputs.flatten(1).narrow(1, 0, 6).to(torch::kBFloat16);
      ddp.backward(ddp(input).square().mean(), optimizer);
    }
    std::vector<torch::Tensor> values;
    for (const torch::Tensor& parameter : net->parameters())
      values.push_back(parameter.to(torch::kFloat32));
    torch::cuda::synchronize();
    return values;
  };
  const auto expected = train(false), seen = train(true);
  checks.require(have_same_bits(expected, seen), "values written on another stream are read when they are there");
  checks.require(is_same_everywhere(group, seen), "all ranks have the same values");
}

/// @param waits_until_now `waits_until_now()`: calls of the CUDA runtime in which the host has waited
template <class Group, class Waits>
void check_sharded_waits(const Group& group, Checks& checks, Waits waits_until_now) {
  nn::Sequential net = conv_net(false, torch::kFloat32, 7);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
  dtrain::libtorch::DistributedDataParallel ddp{net, group};
  dtrain::libtorch::ShardedOptimizer optimizer{ddp, adamw};
  const Samples taken = samples(0, torch::kFloat32);
  for (int step = 0; step < 6; ++step) {
    const torch::Tensor loss = torch::mse_loss(ddp(taken.inputs), taken.targets);
    torch::cuda::synchronize();
    const auto before = waits_until_now();
    if (step == 5) at::cuda::sleep(long_sleep);
    const Point slept;
    ddp.backward(loss, optimizer, {.clip_norm = 1.0});
    if (step == 5) checks.require(!slept.is_reached(), "a sharded step ends before earlier work of the device has");
    if (step >= 3) checks.require(waits_until_now() == before, "a sharded step does not wait on the host");
  }
}

/// A checkpoint of a sharded optimizer goes on with the same bits, and by LibTorch's own optimizer.
template <class Group>
void check_sharded_checkpoint(const Group& group, Checks& checks) {
  const std::string path = "/tmp/dtrain_cuda_probe.ckpt";
  const auto options = torch::optim::AdamWOptions(2e-3);
  const auto train = [&](int first, int last, bool loads, bool saves) {
    nn::Sequential net = conv_net(false, torch::kFloat32, 7);
    torch::optim::AdamW adamw(net->parameters(), options);
    dtrain::libtorch::DistributedDataParallel ddp{net, group};
    dtrain::libtorch::ShardedOptimizer optimizer{ddp, adamw};
    if (loads) checks.require(dtrain::libtorch::load_checkpoint(group, path, net, optimizer), "the file is found");
    for (int step = first; step < last; ++step) {
      const Samples taken = samples(step, torch::kFloat32).part(group.rank(), group.world_size());
      ddp.backward(torch::mse_loss(ddp(taken.inputs), taken.targets), optimizer);
    }
    if (saves) dtrain::libtorch::save_checkpoint(group, path, net, optimizer);
    return state_of(*net);
  };
  const auto whole = train(0, 8, false, false);
  train(0, 4, false, true);
  checks.require(have_same_bits(train(4, 8, true, false), whole), "a loaded sharded optimizer goes on with its bits");
  nn::Sequential net = conv_net(false, torch::kFloat32, 9);
  torch::optim::AdamW adamw(net->parameters(), options);
  checks.require(dtrain::libtorch::load_checkpoint(group, path, net, adamw), "LibTorch's own optimizer takes the file");
  dtrain::libtorch::DistributedDataParallel ddp{net, group};
  for (int step = 4; step < 8; ++step) {
    adamw.zero_grad();
    const Samples taken = samples(step, torch::kFloat32).part(group.rank(), group.world_size());
    ddp.backward(torch::mse_loss(ddp(taken.inputs), taken.targets));
    adamw.step();
  }
  const auto plain = state_of(*net);
  for (std::size_t i = 0; i < whole.size(); ++i)
    checks.require_close(plain[i], whole[i], 1e-3, "LibTorch's own optimizer goes on near it");
}

/// Whether a step that LibTorch captures is refused before it does anything.
template <class Group>
void check_sharded_capture(const Group& group, Checks& checks) {
  nn::Linear net(6, 2);
  net->to(device());
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  dtrain::libtorch::DistributedDataParallel ddp{net, group};
  dtrain::libtorch::ShardedOptimizer optimizer{ddp, sgd};
  const torch::Tensor input = samples(0, torch::kFloat32).inputs.flatten(1).narrow(1, 0, 6);
  ddp.backward(ddp(input).mean(), optimizer);
  torch::cuda::synchronize();
  std::string refusal;
  {
    const c10::cuda::CUDAStreamGuard on_pool(c10::cuda::getStreamFromPool());
    const torch::Tensor loss = ddp(input).mean();
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
    dtrain::stream::cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
    try {
      ddp.backward(loss, optimizer);
    } catch (const dtrain::Error& error) {
      refusal = error.what();
    }
    cudaGraph_t graph = nullptr;
    dtrain::stream::cuda::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    if (graph != nullptr) dtrain::stream::cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  checks.require(refusal.find("was captured in a CUDA graph") != std::string::npos,
                 "a captured step is refused, not '" + refusal + "'");
  ddp.backward(ddp(input).mean(), optimizer);
  checks.require(optimizer.steps() == 2, "later steps go on");
}

template <class Group, class Waits>
void check_sharded(const Group& group, Checks& checks, Waits waits_until_now) {
  using torch::optim::AdamOptions, torch::optim::AdamWOptions, torch::optim::SGDOptions;
  check_sharded_class<torch::optim::AdamW>(group, checks, "AdamW", AdamWOptions(2e-3).betas({0.9, 0.99}));
  check_sharded_class<torch::optim::Adam>(group, checks, "Adam", AdamOptions(2e-3).betas({0.9, 0.99}));
  check_sharded_class<torch::optim::SGD>(group, checks, "SGD", SGDOptions(0.01).momentum(0.9).nesterov(true));
  check_sharded_unused(group, checks);
  check_sharded_streams(group, checks);
  check_sharded_waits(group, checks, waits_until_now);
  check_sharded_checkpoint(group, checks);
  check_sharded_capture(group, checks);
}

}  // namespace cuda_probe
