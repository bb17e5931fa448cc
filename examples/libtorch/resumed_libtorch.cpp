// A training that goes on where its last run stopped: ./resumed_libtorch --nproc-per-node=2 FILE EPOCHS

#include <dtrain/libtorch.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::SharedMemory, dtrain::topology::Flat>;

/// Row r of the data set.
torch::Tensor row(std::size_t r) {
  return torch::arange(6, torch::kFloat32) / static_cast<double>(r + 1);
}

int train(dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
  if (arguments.size() != 3) throw std::runtime_error("give a file and a number of epochs");
  const std::string file = arguments[1];
  const std::uint64_t epochs = std::strtoull(arguments[2], nullptr, 10);
  torch::set_num_threads(1);  // the ranks are the parallelism
  torch::manual_seed(static_cast<std::uint64_t>(group.rank()));
  torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::Dropout(0.5), torch::nn::Linear(8, 1));
  dtrain::libtorch::DistributedDataParallel ddp{net, group};
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
  const dtrain::DistributedSampler sampler{group, {.dataset_size = 100, .global_batch = 20}};
  double last_loss = 0;

  dtrain::libtorch::SamplerPosition position{sampler};  // epoch 0, step 0
  dtrain::load_checkpoint(group, file, net, optimizer, position);
  for (; position.epoch < epochs; ++position.epoch, position.step = 0) {
    const auto batches = sampler.batches(position.epoch);
    for (; position.step < batches.size(); ++position.step) {
      std::vector<torch::Tensor> rows;
      for (const std::size_t sample : batches[position.step])
        rows.push_back(row(sample));
      const torch::Tensor loss = (ddp(torch::stack(rows)) - 1).square().mean();
      optimizer.zero_grad();
      ddp.backward(loss);
      optimizer.step();
      last_loss = loss.item<double>();
    }
    dtrain::save_checkpoint(group, file, net, optimizer, position);
  }
  if (group.rank() == 0) std::printf("last loss %.9f\n", last_loss);
  return 0;
}

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, train);
}
