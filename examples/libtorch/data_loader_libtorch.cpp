// A DataLoader that gives each rank its share of the samples, a validation by all ranks, and weights in a file
// for Python: ./data_loader_libtorch --nproc-per-node=2 FILE

#include <dtrain/libtorch.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <stdexcept>

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::SharedMemory, dtrain::topology::Flat>;

/// Sample i is x = i / 100, and its target sin(x).
struct Sine : torch::data::Dataset<Sine> {
  torch::data::Example<> get(std::size_t i) override {
    const torch::Tensor x = torch::full({1}, static_cast<double>(i) / 100, torch::kFloat32);
    return {x, x.sin()};
  }
  torch::optional<std::size_t> size() const override { return 600; }
};

int train(dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
  if (arguments.size() != 2) throw std::runtime_error("give a file for the weights");
  torch::set_num_threads(1);  // the ranks are the parallelism
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(1, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  dtrain::libtorch::DistributedDataParallel ddp{net, group};
  torch::optim::Adam optimizer(net->parameters(), 0.01);

  const dtrain::DistributedSampler sampler{group, {.dataset_size = 600, .global_batch = 60}};
  dtrain::libtorch::BatchSampler batches(sampler);
  const auto loader =
      torch::data::make_data_loader(Sine().map(torch::data::transforms::Stack<>()), batches, batches.batch_size());
  for (std::uint64_t epoch = 0; epoch < 40; ++epoch) {
    batches.set_epoch(epoch);
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      ddp.backward((ddp(batch.data) - batch.target).square().mean());
      optimizer.step();
    }
  }

  torch::NoGradGuard no_grad;
  double error = 0;
  for (const std::span<const std::size_t> batch : sampler.evaluation()) {
    for (const std::size_t sample : batch) {
      const torch::data::Example<> example = Sine().get(sample);
      error += (net->forward(example.data) - example.target).square().item<double>();
    }
  }
  error = group.all_reduce(error, dtrain::ReduceOp::sum) / 600;
  if (group.rank() == 0) std::printf("mean squared error %.5f\n", error);
  // In Python: net.load_state_dict(safetensors.torch.load_file(file))
  dtrain::save_safetensors(group, std::string(arguments[1]), net);
  return 0;
}

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, train);
}
