// Holds dtrain::libtorch to what it says of modules on a GPU, on as many ranks as are started:
//   cuda_probe --nproc-per-node=N WHAT nccl|staged
// WHAT: parity, buffers, sync_batch_norm, unused, local_sgd, streams, waits, sharded, all (these eight), leaving, which
// ends while a collective is under way, or time, which prints microseconds. Rank 0 prints "WHAT: M checks, N wrong";
// the exit code is 1 if a check is wrong. Ranks may share the only GPU. bench/cuda/libtorch compiles it, against a
// LibTorch for CUDA; no test of this repository runs it.

#include <ATen/Context.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <torch/torch.h>
#include <dtrain/dtrain.hpp>
#include <dtrain/libtorch.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda_nets.hpp"
#include "cuda_sharded_checks.hpp"

namespace {

/// Calls of the CUDA runtime in which the host waits, whoever makes them: the definitions below come before the
/// runtime's.
struct Waits {
  std::atomic<int> device{0}, stream{0}, event{0};
} waits;

template <class Function>
Function next(const char* name) {
  void* const found = ::dlsym(RTLD_NEXT, name);
  if (found == nullptr) {
    std::fprintf(stderr, "the CUDA runtime has no %s\n", name);
    std::abort();
  }
  return reinterpret_cast<Function>(found);
}

}  // namespace

extern "C" {
cudaError_t CUDARTAPI cudaDeviceSynchronize() {
  static const auto real = next<cudaError_t (*)()>("cudaDeviceSynchronize");
  ++waits.device;
  return real();
}
cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream) {
  static const auto real = next<cudaError_t (*)(cudaStream_t)>("cudaStreamSynchronize");
  ++waits.stream;
  return real(stream);
}
cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event) {
  static const auto real = next<cudaError_t (*)(cudaEvent_t)>("cudaEventSynchronize");
  ++waits.event;
  return real(event);
}
}

namespace {

using namespace cuda_probe;
using dtrain::libtorch::BufferPolicy;
using dtrain::libtorch::DistributedDataParallel;
using dtrain::libtorch::GraphPolicy;
using dtrain::stream::cuda::check;

constexpr int steps = 20;
using Forward = std::function<torch::Tensor(const torch::Tensor&)>;
using Backward = std::function<void(const torch::Tensor&)>;

/// `take(step)` gives the samples of a step.
template <class Take>
void train(nn::Sequential net, const Forward& forward, const Backward& backward, Take take, bool set_to_none = true) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad(set_to_none);
    const Samples taken = take(step);
    backward(torch::mse_loss(forward(taken.inputs), taken.targets));
    optimizer.step();
  }
}

/// Without dtrain, on the whole batch.
std::vector<torch::Tensor> trained_alone(bool has_batch_norm, torch::Dtype dtype) {
  nn::Sequential net = conv_net(has_batch_norm, dtype, 7);
  train(
      net, [&](const torch::Tensor& x) { return net->forward(x); }, [](const torch::Tensor& loss) { loss.backward(); },
      [&](int step) { return samples(step, dtype); });
  return state_of(*net);
}

/// Each rank takes its part of the batch, or all ranks the whole one.
template <class Group>
std::vector<torch::Tensor> trained(const Group& group, bool has_batch_norm, torch::Dtype dtype, bool takes_part,
                                   BufferPolicy policy = BufferPolicy::rank0, bool set_to_none = true,
                                   std::size_t bucket_bytes = 0) {
  nn::Sequential net = conv_net(has_batch_norm, dtype, 7 + static_cast<std::uint64_t>(group.rank()));
  DistributedDataParallel ddp{net, group, {.bucket_bytes = bucket_bytes}, policy};
  train(
      net, [&](const torch::Tensor& x) { return ddp(x); }, [&](const torch::Tensor& loss) { ddp.backward(loss); },
      [&](int step) {
        const Samples whole = samples(step, dtype);
        return takes_part ? whole.part(group.rank(), group.world_size()) : whole;
      },
      set_to_none);
  return state_of(*net);
}

/// The first `count` tensors: the parameters of conv_net.
std::vector<torch::Tensor> parameters_in(std::vector<torch::Tensor> state, bool has_batch_norm) {
  state.resize(has_batch_norm ? 10 : 6);
  return state;
}

template <class Group>
void check_parity(const Group& group, Checks& checks) {
  const bool is_power_of_two = (group.world_size() & (group.world_size() - 1)) == 0;
  for (const auto& [dtype, tolerance] : {std::pair(torch::kFloat32, 1e-3), std::pair(torch::kFloat64, 1e-9)}) {
    const std::string type = c10::toString(dtype);
    const std::vector<torch::Tensor> alone = trained_alone(false, dtype);
    for (const bool set_to_none : {true, false}) {
      for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{25} << 20}) {
        const std::string what = type + (set_to_none ? ", gradients set to none" : ", gradients kept") +
                                 (bucket_bytes == 0 ? ", a bucket a parameter" : ", one bucket");
        const auto mine = trained(group, false, dtype, true, BufferPolicy::rank0, set_to_none, bucket_bytes);
        for (std::size_t i = 0; i < alone.size(); ++i)
          checks.require_close(mine[i], alone[i], tolerance,
                               what + ": parameter " + std::to_string(i) + " is that of the whole batch");
        checks.require(is_same_everywhere(group, mine), what + ": all ranks have the same bits");
        if (group.world_size() == 1) checks.require(have_same_bits(mine, alone), what + ": one rank changes no bit");
      }
    }
    const auto first = trained(group, true, dtype, true), second = trained(group, true, dtype, true);
    checks.require(have_same_bits(first, second), type + ": a second run with BatchNorm has the same bits");
    checks.require(is_same_everywhere(group, parameters_in(first, true)), type + ": BatchNorm leaves equal parameters");
    if (is_power_of_two) {
      checks.require(have_same_bits(trained(group, true, dtype, false), trained_alone(true, dtype)),
                     type + ": with the same batch on all ranks, net and buffers have the bits of one process");
    }
  }
}

template <class Group>
void check_buffers(const Group& group, Checks& checks) {
  const double mean = (group.world_size() - 1) / 2.0;
  for (const auto& [policy, expected, name] :
       std::vector<std::tuple<BufferPolicy, double, std::string>>{{BufferPolicy::rank0, 0, "rank0"},
                                                                  {BufferPolicy::mean, mean, "mean"},
                                                                  {BufferPolicy::none, group.rank(), "none"}}) {
    nn::BatchNorm2d net(3);
    net->to(device());
    net->running_mean.fill_(group.rank());
    DistributedDataParallel ddp{net, group, {}, policy};
    checks.require(net->running_mean.abs().sum().item<double>() == 0, name + ": wrapping gives rank 0's buffers");
    for (int step = 0; step < 3; ++step)
      ddp.backward(ddp(samples(step, torch::kFloat32).inputs).square().mean());
    checks.require(net->num_batches_tracked.item<std::int64_t>() == 3, name + ": the count of batches counts");
    checks.require(is_same_everywhere(group, net->buffers()), name + ": equal inputs leave equal buffers");
    net->eval();  // keeps the statistics
    for (int round = 0; round < 20; ++round) {
      const double factor = round + 1;
      if (group.rank() == round % group.world_size()) at::cuda::sleep(long_sleep / 100);
      net->running_mean.fill_(group.rank() * factor);
      const torch::Tensor output = ddp(samples(0, torch::kFloat32).inputs);
      checks.require(torch::equal(net->running_mean, torch::full_like(net->running_mean, expected * factor)),
                     name + ": a pass begins with the policy's buffers");
      checks.require(torch::allclose(output, net->forward(samples(0, torch::kFloat32).inputs)),
                     name + ": the pass itself has used them");
    }
    net->running_mean.fill_(group.rank());
    const torch::NoGradGuard no_grad;
    if (group.rank() == 0) ddp(samples(0, torch::kFloat32).inputs);
    checks.require(torch::equal(net->running_mean, torch::full_like(net->running_mean, group.rank())),
                   name + ": evaluation is a rank's own");
  }
}

/// What a SyncBatchNorm is compared with, and how.
struct NormCase {
  torch::Dtype input, module;
  double tolerance;
  bool is_channels_last = false, is_affine = true, tracks = true;

  std::string name() const {
    return std::string(c10::toString(input)) + " by " + c10::toString(module) +
           (is_channels_last ? ", channels last" : "") + (is_affine ? "" : ", not affine") +
           (tracks ? "" : ", without running statistics");
  }
};

/// Sum over the ranks, in f64. Collective, blocking.
template <class Policy>
torch::Tensor sum_of_all(const dtrain::ProcessGroup<Policy>& group, const torch::Tensor& tensor) {
  const torch::Tensor sum = tensor.detach().to(torch::kFloat64).clone();
  torch::cuda::synchronize();
  group.all_reduce(dtrain::libtorch::view_of(sum).flat(), dtrain::ReduceOp::sum);
  return sum;
}

/// Rank r has r + 2 samples; in the third step the last of several ranks has none. What is right is a BatchNorm's of
/// all samples in f64, of the same values: a BatchNorm in the module's own type rounds as well, and is printed beside
/// it.
template <class Policy>
void check_norm(const dtrain::ProcessGroup<Policy>& group, Checks& checks, const NormCase& given) {
  const auto options = nn::BatchNormOptions(3).affine(given.is_affine).track_running_stats(given.tracks);
  nn::BatchNorm2d serial(options), exact(options);
  serial->to(device(), given.module);
  exact->to(device(), torch::kFloat64);
  dtrain::libtorch::SyncBatchNormImpl<Policy> mine(options, group);
  mine.to(device(), given.module);
  fill(*serial, 5);
  fill(mine, 5);
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < mine.parameters().size(); ++i)
      exact->parameters()[i].copy_(mine.parameters()[i]);
  }
  const auto close = [&](const torch::Tensor& a, const torch::Tensor& b, const std::string& what) {
    checks.require_close(a.to(torch::kFloat64), b.to(torch::kFloat64), given.tolerance, given.name() + ": " + what);
  };
  const auto largest = [](const torch::Tensor& tensor) { return tensor.abs().max().item<double>(); };
  double all_error = 0, serial_error = 0, weight_error = 0, bias_error = 0;  // of the parameters' gradients
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(7 + static_cast<std::uint64_t>(step));
    std::vector<torch::Tensor> batches, factors;
    std::int64_t before = 0;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      const bool is_empty = step == 2 && rank > 0 && rank == group.world_size() - 1;
      const std::int64_t count = is_empty ? 0 : rank + 2;
      batches.push_back((torch::randn({count, 3, 4, 5}) * (rank + 1) + rank).to(device(), given.input));
      factors.push_back(torch::randn({count, 3, 4, 5}).to(device(), given.input));
      if (rank < group.rank()) before += count;
    }
    const auto whole_pass = [&](nn::BatchNorm2d& norm, torch::Dtype dtype) {
      torch::Tensor all = torch::cat(batches).to(dtype).requires_grad_();
      norm->zero_grad();
      const torch::Tensor output = norm->forward(all);
      (output * torch::cat(factors)).sum().backward();
      return std::pair(output, all.grad());
    };
    const auto [serial_output, serial_gradient] = whole_pass(serial, given.input);
    const auto [expected, gradient] = whole_pass(exact, torch::kFloat64);

    const auto me = static_cast<std::size_t>(group.rank());
    torch::Tensor own =
        batches[me].clone(given.is_channels_last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous);
    own.requires_grad_();
    mine.zero_grad();
    const torch::Tensor output = mine.forward(own);
    (output * factors[me]).sum().backward();
    checks.require(output.scalar_type() == serial_output.scalar_type(),
                   given.name() + ": the output has BatchNorm's type");
    close(output, expected.narrow(0, before, own.size(0)), "the output");
    close(own.grad(), gradient.narrow(0, before, own.size(0)), "the input's gradient");
    if (given.is_affine) {
      const torch::Tensor parts = torch::cat({mine.weight.grad(), mine.bias.grad()});
      const torch::Tensor error = sum_of_all(group, parts) - torch::cat({exact->weight.grad(), exact->bias.grad()});
      // Each rank's gradient is rounded to the parameter's type; its sum is one of f32 even of 16-bit inputs.
      const torch::Tensor allowed = sum_of_all(group, parts.abs()) * (given.module == torch::kBFloat16 ? 0.0045 : 0) +
                                    (given.module == torch::kFloat64 ? 1e-9 : 2e-4);
      all_error = std::max(all_error, largest(error));
      serial_error = std::max(serial_error, largest(torch::cat({serial->weight.grad(), serial->bias.grad()}) -
                                                    torch::cat({exact->weight.grad(), exact->bias.grad()})));
      checks.require(
          (error.abs() <= allowed).all().item<bool>(),
          given.name() + ": the parameters' gradients (off by " + std::to_string(largest(error) * 1e9) + "e-9)");
    }
    if (given.is_affine) {  // this rank's own sums, before they are added up
      const torch::Tensor whole = torch::cat(batches).to(torch::kFloat64);
      const torch::Tensor mean = whole.mean({0, 2, 3}, true);
      const torch::Tensor deviation = (whole.var({0, 2, 3}, false, true) + options.eps()).sqrt();
      const torch::Tensor factor = factors[me].to(torch::kFloat64);
      const torch::Tensor of_weight = (factor * (batches[me].to(torch::kFloat64) - mean) / deviation).sum({0, 2, 3});
      weight_error = std::max(weight_error, largest(mine.weight.grad() - of_weight));
      bias_error = std::max(bias_error, largest(mine.bias.grad() - factor.sum({0, 2, 3})));
    }
    if (given.tracks) {
      close(mine.running_mean, exact->running_mean, "the running mean");
      close(mine.running_var, exact->running_var, "the running variance");
    }
  }
  if (given.is_affine) {
    std::printf(
        "rank %d, %s: parameters' gradients off by %.3g (BatchNorm's by %.3g); of this rank's own sums, the weight's "
        "by %.3g, the bias's by %.3g\n",
        group.rank(), given.name().c_str(), all_error, serial_error, weight_error, bias_error);
  }
  if (!given.tracks) return;
  exact->eval();
  mine.eval();
  const torch::Tensor sample = torch::ones({2, 3, 4, 5}).to(device(), given.input);
  close(mine.forward(sample), exact->forward(sample.to(torch::kFloat64)), "evaluation");
}

template <class Policy>
void check_sync_batch_norm(const dtrain::ProcessGroup<Policy>& group, Checks& checks) {
  for (const NormCase& given : std::vector<NormCase>{{torch::kFloat32, torch::kFloat32, 2e-4},
                                                     {torch::kFloat32, torch::kFloat32, 2e-4, true},
                                                     {torch::kFloat32, torch::kFloat32, 2e-4, false, false, false},
                                                     {torch::kFloat32, torch::kFloat32, 2e-4, true, false, true},
                                                     {torch::kFloat64, torch::kFloat64, 1e-9},
                                                     {torch::kFloat64, torch::kFloat64, 1e-9, false, true, false},
                                                     {torch::kHalf, torch::kFloat32, 1e-2},
                                                     {torch::kBFloat16, torch::kFloat32, 5e-2},
                                                     {torch::kBFloat16, torch::kBFloat16, 5e-2}}) {
    check_norm(group, checks, given);
  }
  std::printf("rank %d: SyncBatchNorm as BatchNorm of all samples: %d checks, %d wrong\n", group.rank(), checks.made(),
              checks.wrong());
  std::fflush(stdout);
  {
    dtrain::libtorch::SyncBatchNormImpl<Policy> norm(nn::BatchNormOptions(3), group);
    norm.to(device());
    const torch::Tensor x = torch::randn({2, 3, 4}).to(device()).requires_grad_();
    const torch::Tensor loss = norm.forward(x).pow(3).sum();
    std::string refusal;
    try {
      torch::autograd::grad({loss}, {x}, {}, true, true)[0].square().sum().backward();
    } catch (const dtrain::Error& error) {
      refusal = error.what();
    }
    checks.require(refusal.find("SyncBatchNorm has no second derivative") != std::string::npos,
                   "a second derivative is refused, not '" + refusal + "'");
  }
  // A net whose BatchNorms are converted, each rank with its part of the batch, trains as one process with all of it.
  const std::vector<torch::Tensor> alone = trained_alone(true, torch::kFloat64);
  nn::Sequential net = conv_net(true, torch::kFloat64, 7 + static_cast<std::uint64_t>(group.rank()));
  dtrain::libtorch::convert_sync_batchnorm(*net, group);
  DistributedDataParallel ddp{net, group};
  train(
      net, [&](const torch::Tensor& x) { return ddp(x); }, [&](const torch::Tensor& loss) { ddp.backward(loss); },
      [&](int step) { return samples(step, torch::kFloat64).part(group.rank(), group.world_size()); });
  const std::vector<torch::Tensor> converted = state_of(*net);
  for (std::size_t i = 0; i < alone.size(); ++i)
    checks.require_close(converted[i].to(torch::kFloat64), alone[i].to(torch::kFloat64), 1e-6,
                         "tensor " + std::to_string(i) + " of a converted net is that of one process");
  checks.require(is_same_everywhere(group, converted), "a converted net has the same bits on all ranks");
}

/// The second layer takes part on rank 0 alone, and the third one nowhere.
template <class Group>
void check_unused(const Group& group, Checks& checks) {
  const auto inputs = [](int step) { return samples(step, torch::kFloat32).inputs.flatten(1).narrow(1, 0, 6); };
  for (const auto& [set_to_none, graph] :
       std::vector<std::pair<bool, GraphPolicy>>{{false, GraphPolicy::dynamic_graph},
                                                 {true, GraphPolicy::dynamic_graph},
                                                 {true, GraphPolicy::static_graph}}) {
    nn::Linear first(6, 2), second(6, 2), third(6, 2);
    for (nn::Linear module : {first, second, third})
      module->to(device());
    DistributedDataParallel ddp{dtrain::libtorch::Modules{first.ptr(), second.ptr(), third.ptr()},
                                group,
                                {.allow_unused_parameters = true},
                                BufferPolicy::rank0,
                                graph};
    for (int step = 0; step < 5; ++step) {
      for (nn::Linear module : {first, second, third})
        module->zero_grad(set_to_none);
      torch::Tensor loss = first->forward(inputs(step)).mean();
      if (group.rank() == 0) loss = loss + 3 * second->forward(inputs(step)).mean();
      ddp.backward(loss);
      checks.require_close(second->weight.grad(), 3 * first->weight.grad() / group.world_size(), 1e-4,
                           "what one rank used is divided by the number of ranks");
      checks.require_close(first->weight.grad(), inputs(step).mean(0).expand({2, 6}) / 2, 1e-4,
                           "what all ranks used is the mean");
      checks.require(is_same_everywhere(group, {first->weight.grad(), second->weight.grad()}),
                     "all ranks have the same gradients");
      checks.require(!third->weight.grad().defined(), "what no rank used keeps .grad undefined");
    }
  }
}

/// Where streams other than the default one are the program's: made and trained there, and made on the default stream
/// and trained there. Sleeps in a stream make a missing order visible.
template <class Group>
void check_streams(const Group& group, Checks& checks) {
  const auto run = [&](bool wraps_on_pool, bool trains_on_pool) {
    nn::Sequential net = conv_net(true, torch::kFloat32, 100 + static_cast<std::uint64_t>(group.rank()));
    const nn::Sequential right = conv_net(true, torch::kFloat32, 7);
    torch::cuda::synchronize();
    std::optional<c10::cuda::CUDAStreamGuard> on_pool;
    if (wraps_on_pool) on_pool.emplace(c10::cuda::getStreamFromPool());
    {  // The values are not there yet when the net is wrapped.
      const torch::NoGradGuard no_grad;
      at::cuda::sleep(5 * long_sleep);  // longer than a channel takes to open
      for (std::size_t i = 0; i < net->parameters().size(); ++i)
        net->parameters()[i].copy_(right->parameters()[i]);
    }
    DistributedDataParallel ddp{net, group, {.bucket_bytes = 0}};
    torch::cuda::synchronize();
    if (trains_on_pool && !on_pool) on_pool.emplace(c10::cuda::getStreamFromPool());
    int step = 0;
    train(
        net, [&](const torch::Tensor& x) { return ddp(x); },
        [&](const torch::Tensor& loss) {
          // The rank that comes last changes: the others' reductions take until then.
          if (step++ % group.world_size() == group.rank()) at::cuda::sleep(long_sleep / 20);
          ddp.backward(loss);
        },
        [&](int number) { return samples(number, torch::kFloat32).part(group.rank(), group.world_size()); });
    const std::vector<torch::Tensor> state = state_of(*net);
    torch::cuda::synchronize();
    return state;
  };
  const auto expected = run(false, false);
  checks.require(is_same_everywhere(group, parameters_in(expected, true)), "the default stream: equal parameters");
  const auto alone = trained(group, true, torch::kFloat32, true);
  checks.require(have_same_bits(expected, alone), "the default stream: bits as without sleeps");
  const auto wrapped = run(true, true);
  checks.require(is_same_everywhere(group, parameters_in(wrapped, true)), "wrapped on a pool stream: equal parameters");
  checks.require(have_same_bits(wrapped, expected), "wrapped on a pool stream: the default stream's bits");
  const auto moved = run(false, true);
  checks.require(is_same_everywhere(group, parameters_in(moved, true)), "trained on another stream: equal parameters");
  checks.require(have_same_bits(moved, expected), "trained on another stream: the default stream's bits");
}

/// The average of the weights comes after the optimizer's step, which the stream has not made yet.
template <class Group>
void check_local_sgd(const Group& group, Checks& checks) {
  nn::Sequential net = conv_net(false, torch::kFloat32, 7);
  dtrain::hooks::LocalSgd local{{.every = 1}};
  DistributedDataParallel ddp{net, group, {}, std::ref(local)};
  for (int step = 0; step < 5; ++step) {
    const c10::cuda::CUDAStreamGuard on_pool(c10::cuda::getStreamFromPool());
    const torch::NoGradGuard no_grad;
    at::cuda::sleep(long_sleep / 10);
    for (torch::Tensor& parameter : net->parameters())
      parameter.fill_(step + group.rank());
    local.average(group);
    const double expected = step + (group.world_size() - 1) / 2.0;
    bool holds = true;
    for (const torch::Tensor& parameter : net->parameters())
      holds = holds && torch::equal(parameter, torch::full_like(parameter, expected));
    checks.require(holds, "an average has the values of the stream's earlier work, in step " + std::to_string(step));
  }
}

/// The rank leaves while the flags of its last step are under way: rank 0 at once, the others later.
template <class Group>
void check_leaving(const Group& group, Checks& checks) {
  nn::Linear first(6, 2), second(6, 2);
  for (nn::Linear module : {first, second})
    module->to(device());
  DistributedDataParallel ddp{
      dtrain::libtorch::Modules{first.ptr(), second.ptr()}, group, {.allow_unused_parameters = true}};
  const torch::Tensor input = samples(0, torch::kFloat32).inputs.flatten(1).narrow(1, 0, 6);
  for (int step = 0; step < 3; ++step) {
    for (nn::Linear module : {first, second})
      module->zero_grad(false);
    if (group.rank() > 0) at::cuda::sleep(long_sleep / 4);
    ddp.backward((first->forward(input) + second->forward(input)).mean());
  }
  checks.require(first->weight.grad().defined(), "there is a gradient");
}

/// Waits of the host in a training step, and whether forward and backward return before the device has done the work
/// that came before them.
template <class Policy>
void check_waits(const dtrain::ProcessGroup<Policy>& group, Checks& checks) {
  const int before = waits.device;
  torch::cuda::synchronize();
  checks.require(waits.device == before + 1, "LibTorch's device-wide waits are counted");
  const auto step_waits = [&](const std::string& name, nn::Sequential net, const Forward& forward,
                              const Backward& backward) {
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.02));
    const Samples taken = samples(0, torch::kFloat32);
    for (int step = 0; step < 4; ++step) {
      torch::cuda::synchronize();
      const std::array<int, 3> from{waits.device, waits.stream, waits.event};
      if (step == 3) at::cuda::sleep(long_sleep);
      const Point slept;
      optimizer.zero_grad();
      const auto begin = std::chrono::steady_clock::now();
      const torch::Tensor loss = torch::mse_loss(forward(taken.inputs), taken.targets);
      const bool forward_ran_ahead = !slept.is_reached();
      const auto middle = std::chrono::steady_clock::now();
      backward(loss);
      const bool backward_ran_ahead = !slept.is_reached();
      const auto end = std::chrono::steady_clock::now();
      optimizer.step();
      const std::array<int, 3> made{waits.device - from[0], waits.stream - from[1], waits.event - from[2]};
      if (step != 3) continue;
      const auto microseconds = [](auto duration) {
        return static_cast<int>(std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
      };
      std::printf("rank %d, %s: waits for the device %d, a stream %d, an event %d; forward %d us%s, backward %d us%s\n",
                  group.rank(), name.c_str(), made[0], made[1], made[2], microseconds(middle - begin),
                  forward_ran_ahead ? ", runs ahead" : "", microseconds(end - middle),
                  backward_ran_ahead ? ", runs ahead" : "");
      checks.require(made == std::array<int, 3>{},
                     name + ": a step waits neither for the device, a stream nor an event");
      checks.require(forward_ran_ahead, name + ": forward returns before earlier work of the device has ended");
      checks.require(backward_ran_ahead, name + ": backward returns before earlier work of the device has ended");
    }
    torch::cuda::synchronize();
  };
  const auto bare = [](nn::Sequential net) {
    return std::pair<Forward, Backward>([net](const torch::Tensor& x) mutable { return net->forward(x); },
                                        [](const torch::Tensor& loss) { loss.backward(); });
  };
  nn::Sequential alone = conv_net(true, torch::kFloat32, 7);
  const auto [forward, backward] = bare(alone);
  step_waits("LibTorch alone", alone, forward, backward);
  for (const auto& [name, policy, converts, allow_unused] :
       std::vector<std::tuple<std::string, BufferPolicy, bool, bool>>{
           {"buffers of rank 0", BufferPolicy::rank0, false, false},
           {"mean of the buffers", BufferPolicy::mean, false, false},
           {"SyncBatchNorm", BufferPolicy::none, true, false},
           {"unused parameters", BufferPolicy::none, false, true}}) {
    nn::Sequential net = conv_net(true, torch::kFloat32, 7);
    if (converts) dtrain::libtorch::convert_sync_batchnorm(*net, group);
    DistributedDataParallel ddp{net, group, {.allow_unused_parameters = allow_unused}, policy};
    step_waits(
        name, net, [&](const torch::Tensor& x) { return ddp(x); },
        [&](const torch::Tensor& loss) { ddp.backward(loss); });
  }
}

/// What dtrain adds to a step of a ResNet-18, in microseconds of the host and of the device.
template <class Policy>
void measure_time(const dtrain::ProcessGroup<Policy>& group) {
  torch::manual_seed(3);
  const torch::Tensor inputs = torch::randn({32, 3, 32, 32}).to(device());
  const torch::Tensor targets = torch::randint(10, {32}, torch::kInt64).to(device());
  const auto measure = [&](const char* name, nn::Sequential net, const Forward& forward, const Backward& backward) {
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    using Clock = std::chrono::steady_clock;
    std::array<std::vector<double>, 4> parts;  // forward, backward, optimizer, all
    const auto step = [&](bool is_measured) {
      const auto begin = Clock::now();
      optimizer.zero_grad();
      const torch::Tensor loss = torch::cross_entropy_loss(forward(inputs), targets);
      const auto after_forward = Clock::now();
      backward(loss);
      const auto after_backward = Clock::now();
      optimizer.step();
      const auto end = Clock::now();
      if (!is_measured) return;
      const auto microseconds = [](Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); };
      parts[0].push_back(microseconds(after_forward - begin));
      parts[1].push_back(microseconds(after_backward - after_forward));
      parts[2].push_back(microseconds(end - after_backward));
      parts[3].push_back(microseconds(end - begin));
    };
    for (int i = 0; i < 6; ++i)
      step(false);
    for (int i = 0; i < 15; ++i) {
      torch::cuda::synchronize();
      group.barrier();
      step(true);
    }
    torch::cuda::synchronize();
    group.barrier();
    constexpr int in_a_row = 15;
    const Point first;
    const int device_waits = waits.device;
    for (int i = 0; i < in_a_row; ++i)
      step(false);
    const int made = waits.device - device_waits;
    const Point last;
    torch::cuda::synchronize();
    std::array<double, 4> medians{};
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::nth_element(parts[i].begin(), parts[i].begin() + 7, parts[i].end());
      medians[i] = parts[i][7];
    }
    std::printf(
        "rank %d of %d, %-22s host %6.0f us (forward %.0f, backward %.0f, optimizer %.0f); a step in a row %6.0f us, "
        "%.1f device-wide waits\n",
        group.rank(), group.world_size(), name, medians[3], medians[0], medians[1], medians[2],
        static_cast<double>(last.since(first)) / in_a_row, static_cast<double>(made) / in_a_row);
    std::fflush(stdout);
    group.barrier();
  };
  {
    nn::Sequential net = resnet18();
    measure(
        "LibTorch alone:", net, [&](const torch::Tensor& x) { return net->forward(x); },
        [](const torch::Tensor& loss) { loss.backward(); });
  }
  for (const auto& [name, policy, converts] :
       std::vector<std::tuple<const char*, BufferPolicy, bool>>{{"buffers of rank 0:", BufferPolicy::rank0, false},
                                                                {"mean of the buffers:", BufferPolicy::mean, false},
                                                                {"own buffers:", BufferPolicy::none, false},
                                                                {"SyncBatchNorm:", BufferPolicy::none, true}}) {
    nn::Sequential net = resnet18();
    if (converts) dtrain::libtorch::convert_sync_batchnorm(*net, group);
    DistributedDataParallel ddp{net, group, {}, policy};
    measure(
        name, net, [&](const torch::Tensor& x) { return ddp(x); },
        [&](const torch::Tensor& loss) { ddp.backward(loss); });
  }
}

template <class Policy>
int probe(dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
  using Group = dtrain::ProcessGroup<Policy>;
  const std::string what(arguments.size() > 1 ? arguments[1] : "");
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
  at::globalContext().setAllowTF32CuDNN(false);
  if (group.rank() == 0)
    std::printf("LibTorch %s, %s, %d ranks\n", TORCH_VERSION, std::string(Policy::Backend::name()).c_str(),
                group.world_size());
  if (what == "time") {
    measure_time(group);
    return 0;
  }
  const std::vector<std::pair<std::string, void (*)(const Group&, Checks&)>> checks{
      {"parity", &check_parity<Group>},
      {"buffers", &check_buffers<Group>},
      {"sync_batch_norm", &check_sync_batch_norm<Policy>},
      {"unused", &check_unused<Group>},
      {"local_sgd", &check_local_sgd<Group>},
      {"streams", &check_streams<Group>},
      {"waits", &check_waits<Policy>},
      {"sharded", [](const Group& all, Checks& made) {
         check_sharded(all, made, [] { return std::array<int, 3>{waits.device, waits.stream, waits.event}; });
       }}};
  int run = 0;
  int wrong = 0;
  for (const auto& [name, run_checks] : checks) {
    if (what != name && what != "all") continue;
    ++run;
    const auto begin = std::chrono::steady_clock::now();
    Checks counted(group.rank());
    try {
      run_checks(group, counted);
    } catch (const dtrain::JobFailed&) {
      throw;
    } catch (const std::exception& error) {  // on all ranks alike, or the next collective fails
      counted.require(false, std::string("nothing is thrown: ") + error.what());
    }
    torch::cuda::synchronize();
    const std::int64_t all_wrong = group.all_reduce(static_cast<std::int64_t>(counted.wrong()));
    wrong += static_cast<int>(all_wrong);
    if (group.rank() == 0) {
      std::printf("%s: %d checks, %d wrong, %.1f s\n", name.c_str(), counted.made(), static_cast<int>(all_wrong),
                  std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::fflush(stdout);
  }
  if (what == "leaving") {  // the last that this rank does
    Checks counted(group.rank());
    check_leaving(group, counted);
    return counted.wrong() == 0 ? 0 : 1;
  }
  if (run == 0)
    throw std::runtime_error(
        "give parity, buffers, sync_batch_norm, unused, local_sgd, streams, waits, sharded, all, leaving or time");
  return wrong == 0 ? 0 : 1;
}

template <class Backend>
int job(int argc, char** argv) {
  using Policy = dtrain::Policy<dtrain::launch::PerNode, Backend>;
  return dtrain::run<Policy>(argc, argv, probe<Policy>);
}

}  // namespace

int main(int argc, char** argv) {
  // Sums of the same bits in every run.
  if (::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1) != 0) return 2;
  const bool is_staged =
      std::any_of(argv + 1, argv + argc, [](const char* text) { return std::string_view(text) == "staged"; });
  return is_staged ? job<dtrain::backend::Staged<dtrain::backend::SharedMemory>>(argc, argv)
                   : job<dtrain::backend::Nccl>(argc, argv);
}
