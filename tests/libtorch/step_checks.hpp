#pragma once
/// @file
/// Checks of what steps do with gradients and buffers, against LibTorch alone.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "expectations.hpp"
#include "torch_model.hpp"

namespace torch_model_probe {

/// Six steps on all ranks are those of one LibTorch on all their samples.
inline void check_training(const Group& group, bool set_to_none) {
  torch::manual_seed(0);
  nn::Sequential alone = two_layers();
  torch::optim::SGD optimizer_alone(alone->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::manual_seed(static_cast<std::uint64_t>(group.rank()));
  nn::Sequential network = two_layers();
  torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  libtorch::TorchModel model(*network);
  dtrain::DistributedDataParallel ddp{model, group, {.bucket_bytes = 0}};
  std::vector<const void*> places;
  for (int step = 0; step < 6; ++step) {
    optimizer_alone.zero_grad();
    torch::Tensor mean = torch::zeros({1});
    for (int rank = 0; rank < group.world_size(); ++rank) {
      mean = mean + loss_of(alone, inputs_of(rank, step)) / group.world_size();
    }
    mean.backward();
    optimizer_alone.step();

    network->zero_grad(set_to_none);
    const torch::Tensor loss = loss_of(network, inputs_of(group.rank(), step));
    ddp.backward([&](dtrain::Ready ready) { model.backward(loss, ready); });
    std::vector<const void*> now;
    for (const torch::Tensor& parameter : network->parameters())
      now.push_back(parameter.grad().data_ptr());
    require(step == 0 || now == places, "gradients stay in dtrain's memory");
    places = now;
    for (std::size_t i = 0; i < network->parameters().size(); ++i) {
      require(are_close(network->parameters()[i].grad(), alone->parameters()[i].grad()),
              "gradient " + std::to_string(i) + " of step " + std::to_string(step) + " is the mean of all ranks'");
    }
    optimizer.step();
  }
  for (std::size_t i = 0; i < network->parameters().size(); ++i) {
    require(are_close(network->parameters()[i], alone->parameters()[i]), "parameters are those of LibTorch alone");
    require(is_same_everywhere(group, network->parameters()[i]), "parameters are the same on all ranks");
  }
}

inline void check_buffers(const Group& group) {
  torch::manual_seed(static_cast<std::uint64_t>(group.rank()));
  nn::Sequential network(nn::Linear(6, 5), nn::BatchNorm1d(5));
  network->buffers()[0].fill_(group.rank());
  libtorch::TorchModel model(*network);
  require(model.buffers().size() == 3, "BatchNorm has a mean, a variance and a count");
  dtrain::DistributedDataParallel ddp{model, group};
  require(network->buffers()[0].sum().item<double>() == 0, "wrapping gives every rank rank 0's buffers");
  for (int step = 0; step < 3; ++step) {
    const torch::Tensor loss = loss_of(network, inputs_of(group.rank(), step));
    ddp.backward([&](dtrain::Ready ready) { model.backward(loss, ready); });
  }
  for (const torch::Tensor& buffer : network->buffers()) {
    require(is_same_everywhere(group, buffer), "all ranks have rank 0's buffers after a step");
  }
  require(network->buffers()[2].item<std::int64_t>() == 3, "the count of batches counts");
}

/// The second layer takes part on rank 0 alone, and a third one nowhere.
inline void check_unused(const Group& group) {
  for (const bool set_to_none : {false, true}) {
    nn::Linear first(6, 2);
    nn::Linear second(6, 2);
    nn::Sequential all(first, second, nn::Linear(6, 2));
    libtorch::TorchModel model(*all);
    dtrain::DistributedDataParallel ddp{model, group, {.allow_unused_parameters = true}};
    for (int step = 0; step < 3; ++step) {
      all->zero_grad(set_to_none);
      torch::Tensor loss = first->forward(inputs_of(0, step)).mean();
      if (group.rank() == 0) loss = loss + 3 * second->forward(inputs_of(0, step)).mean();
      ddp.backward([&](dtrain::Ready ready) { model.backward(loss, ready); });
      require(are_close(second->weight.grad(), 3 * first->weight.grad() / group.world_size()),
              "a gradient of one rank alone is divided by the number of ranks");
      require(all->parameters()[4].grad().abs().sum().item<double>() == 0, "a gradient of no rank is zeros");
      for (const torch::Tensor& parameter : all->parameters()) {
        require(is_same_everywhere(group, parameter.grad()), "all ranks have the same gradients");
      }
    }
  }
}

/// Two passes under no_sync and one without make the mean of the ranks' sums.
inline void check_accumulation(const Group& group) {
  for (const bool set_to_none : {false, true}) {
    torch::manual_seed(0);
    nn::Sequential alone = two_layers();
    torch::manual_seed(0);
    nn::Sequential network = two_layers();
    libtorch::TorchModel model(*network);
    dtrain::DistributedDataParallel ddp{model, group};
    for (int round = 0; round < 3; ++round) {
      alone->zero_grad();
      network->zero_grad(set_to_none);
      for (int pass = 0; pass < 3; ++pass) {
        for (int rank = 0; rank < group.world_size(); ++rank) {
          (loss_of(alone, inputs_of(rank, pass)) / group.world_size()).backward();
        }
        std::optional<dtrain::ddp::NoSync> held;
        if (pass < 2) held.emplace(ddp.no_sync());
        const torch::Tensor loss = loss_of(network, inputs_of(group.rank(), pass));
        ddp.backward([&](dtrain::Ready ready) { model.backward(loss, ready); });
      }
      for (std::size_t i = 0; i < network->parameters().size(); ++i) {
        require(are_close(network->parameters()[i].grad(), alone->parameters()[i].grad()),
                "gradient " + std::to_string(i) + " is the mean of the ranks' sums");
      }
    }
  }
}

}  // namespace torch_model_probe
