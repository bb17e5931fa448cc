// Parameters that are in no module, and of which there are more as the training goes on: bumps whose sum follows a
// sine.
//   growing_libtorch --nproc-per-node=2

#include <torch/torch.h>

#include <cstdio>
#include <dtrain/libtorch.hpp>
#include <memory>
#include <optional>
#include <vector>

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::SharedMemory>;
using Ddp = dtrain::libtorch::DistributedDataParallel<std::shared_ptr<torch::nn::Module>, Policy>;

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](const dtrain::ProcessGroup<Policy>& group) {
    torch::Tensor centers = torch::linspace(-3, 3, 3).requires_grad_();
    torch::Tensor heights = torch::zeros({3}).requires_grad_();
    std::optional<Ddp> ddp;
    std::optional<torch::optim::Adam> optimizer;
    const auto wrap = [&] {
      ddp.reset();
      ddp.emplace(dtrain::libtorch::as_module({{"centers", centers}, {"heights", heights}}), group);
      optimizer.emplace(std::vector<torch::Tensor>{centers, heights}, 0.05);
    };
    wrap();
    torch::manual_seed(static_cast<std::uint64_t>(group.rank()) + 1);  // other samples on each rank
    double loss = 0;
    for (int step = 0; step < 300; ++step) {
      if (step == 100 || step == 200) {  // on all ranks alike
        centers = torch::cat({centers, centers + 0.5}).detach().requires_grad_();
        heights = torch::cat({heights, torch::zeros_like(heights)}).detach().requires_grad_();
        wrap();
      }
      const torch::Tensor x = 6 * torch::rand({64, 1}) - 3;
      const torch::Tensor curve = (heights * (-(x - centers).square()).exp()).sum(1, true);
      const torch::Tensor error = (curve - x.sin()).square().mean();
      optimizer->zero_grad();
      ddp->backward(error);
      optimizer->step();
      loss = error.item<double>();
    }
    loss = group.all_reduce(loss, dtrain::ReduceOp::average);
    if (group.rank() == 0) std::printf("%d bumps, mean square error %.4f\n", static_cast<int>(heights.numel()), loss);
    return loss < 0.02 ? 0 : 1;
  });
}
