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

namespace {

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory, dtrain::topology::Flat>;

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
  if (group.rank() == 0) std::printf("holds: SyncBatchNorm is BatchNorm over all samples\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, probe);
}
