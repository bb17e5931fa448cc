// Holds dtrain::libtorch::SyncBatchNormImpl to BatchNorm over the samples of all ranks:
//   sync_batch_norm_probe --nproc-per-node=N           rank 0 prints "holds: ..." for each check
// Built where LibTorch is (examples/libtorch); integration.libtorch runs it.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>
#include <dtrain/libtorch.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "expectations.hpp"

namespace {

using libtorch_probe::Policy;
using libtorch_probe::require_error;

void require_close(const torch::Tensor& a, const torch::Tensor& b, const std::string& what) {
  if (!torch::allclose(a, b, 1e-6, 1e-6)) throw std::runtime_error("not BatchNorm's within 1e-6: " + what);
}

struct Member : torch::nn::Module {
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(3));
};

void check_conversion(const dtrain::ProcessGroup<Policy>& group) {
  torch::nn::Sequential net(torch::nn::BatchNorm2d(3), torch::nn::ReLU());
  const std::vector<torch::Tensor> before = net->parameters();
  dtrain::libtorch::convert_sync_batchnorm(*net, group);
  if (net->parameters().size() != 2 || !net->parameters()[0].is_same(before[0]))
    throw std::runtime_error("the conversion lost a parameter");
  dtrain::libtorch::DistributedDataParallel ddp{net, group, {}, dtrain::libtorch::BufferPolicy::none};
  const torch::Tensor own = torch::full({2, 3, 4, 5}, group.rank());
  ddp.backward(ddp(own).sum());
  const torch::Tensor mean = torch::full({3}, 0.1 * (group.world_size() - 1) / 2.0);
  for (const auto& item : net->named_buffers()) {
    if (item.key() == "0.running_mean") return require_close(item.value(), mean, "the converted module's mean");
  }
  throw std::runtime_error("the conversion lost the running mean");
}

void check_refused_member(const dtrain::ProcessGroup<Policy>& group) {
  Member member;
  try {
    dtrain::libtorch::convert_sync_batchnorm(member, group);
  } catch (const dtrain::Error& error) {
    if (std::string_view(error.what()).find("the BatchNorm 'norm' is a member of a module") == std::string_view::npos)
      throw;
    return;
  }
  throw std::runtime_error("a BatchNorm that stays was not named");
}

/// Where a gradient's own derivative is asked for, whether the gradient that comes back depends on the input or not.
void check_second_derivative(const dtrain::ProcessGroup<Policy>& group) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
  dtrain::libtorch::convert_sync_batchnorm(*net, group);
  const torch::Tensor weights = torch::randn({3, 4});
  for (const bool is_linear : {true, false}) {
    const torch::Tensor x = torch::randn({3, 4}).requires_grad_();
    const auto first = [&](bool create_graph) {
      const torch::Tensor output = net->forward(x);
      const torch::Tensor loss = is_linear ? (output * weights).sum() : output.pow(3).sum();
      return torch::autograd::grad({loss}, {x}, {}, true, create_graph)[0];
    };
    const torch::Tensor gradient = first(true);
    require_close(gradient, first(false), "a gradient with a graph");
    require_error("SyncBatchNorm has no second derivative", [&] { gradient.square().sum().backward(); });
  }
  net->eval();
  const torch::Tensor x = torch::randn({3, 4}).requires_grad_();
  torch::autograd::grad({net->forward(x).pow(3).sum()}, {x}, {}, true, true)[0].square().sum().backward();
}

/// The output outlives the module.
void check_lifetime(const dtrain::ProcessGroup<Policy>& group) {
  torch::Tensor loss;
  {
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
    dtrain::libtorch::convert_sync_batchnorm(*net, group);
    loss = net->forward(torch::randn({3, 4})).square().sum();
  }
  const std::vector<torch::Tensor> reused(20, torch::full({64}, 1));  // of the memory that the module leaves
  loss.backward();
}

/// Rank r has r + 2 samples.
int probe(dtrain::ProcessGroup<Policy> group, dtrain::Arguments) {
  torch::set_num_threads(1);
  torch::nn::BatchNorm2d serial(3);
  dtrain::libtorch::SyncBatchNormImpl<Policy> mine(torch::nn::BatchNormOptions(3), group);
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(7 + static_cast<unsigned>(step));
    std::vector<torch::Tensor> batches, factors;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      batches.push_back(torch::randn({rank + 2, 3, 4, 5}) * (rank + 1) + rank);
      factors.push_back(torch::randn({rank + 2, 3, 4, 5}) * 0.01);
    }
    torch::Tensor all = torch::cat(batches).requires_grad_();
    serial->zero_grad();
    const torch::Tensor expected = serial->forward(all);
    (expected * torch::cat(factors)).sum().backward();

    const std::size_t me = static_cast<std::size_t>(group.rank());
    torch::Tensor own = batches[me].clone().requires_grad_();
    mine.zero_grad();
    const torch::Tensor output = mine.forward(own);
    (output * factors[me]).sum().backward();
    std::int64_t before = 0;
    for (int rank = 0; rank < group.rank(); ++rank)
      before += rank + 2;
    require_close(output, expected.narrow(0, before, own.size(0)), "the output");
    require_close(own.grad(), all.grad().narrow(0, before, own.size(0)), "the input's gradient");
    const torch::Tensor parameters = torch::cat({mine.weight.grad(), mine.bias.grad()});
    group.all_reduce(dtrain::libtorch::view_of(parameters).flat(), dtrain::ReduceOp::sum);
    require_close(parameters, torch::cat({serial->weight.grad(), serial->bias.grad()}), "the parameters' gradients");
    require_close(mine.running_mean, serial->running_mean, "the running mean");
    require_close(mine.running_var, serial->running_var, "the running variance");
  }
  serial->eval();
  mine.eval();
  const torch::Tensor sample = torch::ones({2, 3, 4, 5});
  require_close(mine.forward(sample), serial->forward(sample), "evaluation");
  check_conversion(group);
  check_refused_member(group);
  check_second_derivative(group);
  check_lifetime(group);
  if (group.rank() == 0) std::printf("holds: SyncBatchNorm is BatchNorm over all samples\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, probe);
}
