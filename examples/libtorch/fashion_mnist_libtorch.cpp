// A convolutional network of LibTorch's, trained on Fashion-MNIST by as many ranks as are started:
// ./fashion_mnist_libtorch --nproc-per-node=2
//   --epochs=N     passes over the training images (default 1)
//   --images=N     only the first N of them (default 60000)
//   --data=DIR     the folder with the four .gz files (default /usr/share/datasets/fashion-mnist)
//   --zero         divide the optimizer's state among the ranks
//   --plain        one rank, without dtrain's wrapper: what the others are to be compared with

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>
#include <dtrain/libtorch.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

#include "images.hpp"

namespace {

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::SharedMemory, dtrain::topology::Flat>;
using Group = dtrain::ProcessGroup<Policy>;
namespace nn = torch::nn;

constexpr std::size_t global_batch = 256;

struct Options {
  std::size_t epochs = 1;
  std::size_t images = 60000;
  std::string data = "/usr/share/datasets/fashion-mnist";
  bool zero = false;
  bool plain = false;
};

/// @throws dtrain::Error (usage)
Options options_of(dtrain::Arguments arguments) {
  Options options;
  for (const std::string_view argument : arguments.subspan(1)) {
    const std::size_t equals = argument.find('=');
    const std::string_view name = argument.substr(0, equals);
    const std::string value(equals == std::string_view::npos ? "" : argument.substr(equals + 1));
    const bool is_number = !value.empty() && value.size() < 9 && value.find_first_not_of("0123456789") == value.npos;
    if (name == "--epochs" && is_number) {
      options.epochs = std::stoul(value);
    } else if (name == "--images" && is_number && value != "0") {
      options.images = std::stoul(value);
    } else if (name == "--data" && !value.empty()) {
      options.data = value;
    } else if (argument == "--zero") {
      options.zero = true;
    } else if (argument == "--plain") {
      options.plain = true;
    } else {
      throw dtrain::Error(dtrain::Errc::usage, "the argument '" + std::string(argument) +
                                                   "' cannot be followed; there are --epochs=N, --images=N, "
                                                   "--data=DIR, --zero and --plain");
    }
  }
  return options;
}

/// Exponential linear units and strides instead of ReLU and maxima: without steps in their slopes a last bit's
/// difference stays one, so that any number of ranks reaches the same loss.
nn::Sequential make_network() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 16, 5).stride(2)), nn::ELU(),
                        nn::Conv2d(nn::Conv2dOptions(16, 32, 5).stride(2)), nn::ELU(), nn::Flatten(),
                        nn::Linear(512, 128), nn::ELU(), nn::Linear(128, 10));
}

/// `step(loss)` makes the gradients and updates the network. @returns seconds an epoch
template <class Step>
double train_epochs(nn::Sequential& network, const libtorch::Images& images, const Group& group, const Options& options,
                    Step step) {
  const dtrain::DistributedSampler sampler{group,
                                           {.dataset_size = images.size(), .global_batch = global_batch, .seed = 1}};
  group.barrier();
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t epoch = 0; epoch < options.epochs; ++epoch) {
    for (const std::span<const std::size_t> samples : sampler.batches(epoch)) {
      const libtorch::Batch batch = libtorch::gather(images, samples);
      network->zero_grad();
      step(nn::functional::cross_entropy(network->forward(batch.inputs), batch.labels));
    }
  }
  group.barrier();
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  return time.count() / static_cast<double>(options.epochs);
}

struct Score {
  double loss = 0;
  double accuracy = 0;
};

/// Every image counts once, whatever the number of ranks. Collective, blocking.
Score evaluate(nn::Sequential& network, const libtorch::Images& images, const Group& group) {
  const torch::NoGradGuard no_grad;
  const dtrain::DistributedSampler sampler{
      group, {.dataset_size = images.size(), .global_batch = 512 * static_cast<std::size_t>(group.world_size())}};
  std::array<double, 2> sums{};
  for (const std::span<const std::size_t> samples : sampler.evaluation()) {
    const libtorch::Batch batch = libtorch::gather(images, samples);
    const torch::Tensor scores = network->forward(batch.inputs).to(torch::kFloat64);
    sums[0] += nn::functional::cross_entropy(scores, batch.labels).item<double>() * static_cast<double>(samples.size());
    sums[1] += scores.argmax(1).eq(batch.labels).sum().item<double>();
  }
  group.all_reduce(sums, dtrain::ReduceOp::sum);
  return {sums[0] / static_cast<double>(images.size()), sums[1] / static_cast<double>(images.size())};
}

int train(Group group, dtrain::Arguments arguments) {
  const Options options = options_of(arguments);
  if (options.plain && group.world_size() != 1) {
    throw dtrain::Error(dtrain::Errc::usage,
                        "--plain trains on one rank, and there are " + std::to_string(group.world_size()));
  }
  torch::set_num_threads(1);                                     // the ranks are the parallelism
  torch::manual_seed(static_cast<std::uint64_t>(group.rank()));  // the wrapper gives all ranks rank 0's parameters
  const libtorch::Images training = libtorch::load_images(options.data, "train", options.images);
  const libtorch::Images test = libtorch::load_images(options.data, "t10k", options.images);
  nn::Sequential network = make_network();

  torch::optim::SGD sgd(network->parameters(), torch::optim::SGDOptions(0.03).momentum(0.9));

  double seconds = 0;
  std::string summary;
  if (options.plain) {
    seconds = train_epochs(network, training, group, options, [&](const torch::Tensor& loss) {
      loss.backward();
      sgd.step();
    });
  } else {
    dtrain::libtorch::DistributedDataParallel ddp{network, group};
    if (options.zero) {
      dtrain::libtorch::ShardedOptimizer optimizer{ddp, sgd};
      seconds = train_epochs(network, training, group, options,
                             [&](const torch::Tensor& loss) { ddp.backward(loss, optimizer); });
    } else {
      seconds = train_epochs(network, training, group, options, [&](const torch::Tensor& loss) {
        ddp.backward(loss);
        sgd.step();
      });
    }
    summary = ddp.summary();
  }
  const double loss = evaluate(network, training, group).loss;
  const double accuracy = evaluate(network, test, group).accuracy;
  if (group.rank() == 0) {
    std::printf("%s\ntraining loss %.7f, test accuracy %.4f, %.2f s an epoch on %d rank(s)%s\n", summary.c_str(), loss,
                accuracy, seconds, group.world_size(), options.plain ? " without dtrain's wrapper" : "");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, train);
}
