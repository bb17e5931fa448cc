#pragma once
/// @file
/// Checks of libtorch::ShardedOptimizer against LibTorch's own optimizers behind ddp.backward(loss).

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>
#include <dtrain/libtorch.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "expectations.hpp"

namespace libtorch_probe {

using dtrain::libtorch::ShardedOptimizer;

inline void require_near(const nn::Sequential& net, const nn::Sequential& alone, const std::string& what) {
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    require(torch::allclose(net->parameters()[i], alone->parameters()[i], 1e-5, 1e-6),
            "parameter " + std::to_string(i) + " " + what);
  }
}

/// Weights in one group, biases in another that does not decay, but for the last one, which is in none.
template <class Options>
std::vector<torch::optim::OptimizerParamGroup> groups_of(const nn::Sequential& net, const Options& options) {
  const std::vector<torch::Tensor> all = net->parameters();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector{all[0], all[2]}, std::make_unique<Options>(options));
  groups.emplace_back(std::vector{all[1]}, std::make_unique<Options>(Options(options).weight_decay(0)));
  return groups;
}

/// Twelve steps with two groups, a schedule, passes under no_sync, and clipping.
template <class Optimizer, class Options>
void check_updates(const Group& group, const std::string& name, const Options& options) {
  nn::Sequential alone = two_layers(1);
  nn::Sequential net = two_layers(1 + group.rank());
  DistributedDataParallel ddp_alone{alone, group};
  DistributedDataParallel ddp{net, group, {.bucket_bytes = 64}};
  Optimizer updating(groups_of(alone, options), options);
  Optimizer described(groups_of(net, options), options);
  torch::optim::StepLR schedule_alone(updating, 3, 0.5);
  torch::optim::StepLR schedule(described, 3, 0.5);
  ShardedOptimizer optimizer{ddp, described};
  const auto clip = [](dtrain::ShardedGradients& gradients) {
    dtrain::clip_gradients(gradients, 0.1);
    return true;
  };
  for (int step = 0; step < 12; ++step) {
    alone->zero_grad();
    for (int pass = 0; pass < 2; ++pass) {
      const torch::Tensor inputs = inputs_of(group.rank(), 2 * step + pass);
      std::optional<dtrain::ddp::NoSync> held;
      std::optional<dtrain::ddp::NoSync> held_alone;
      if (pass == 0) {
        held.emplace(ddp.no_sync());
        held_alone.emplace(ddp_alone.no_sync());
      }
      ddp_alone.backward(loss_of(ddp_alone(inputs)));
      const torch::Tensor loss = loss_of(ddp(inputs));
      if (pass == 0) {
        ddp.backward(loss);
      } else if (step % 2 == 0) {
        ddp.backward(loss, optimizer);
      } else {
        torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.1);
        ddp.backward(loss, optimizer, clip);
      }
    }
    updating.step();
    schedule_alone.step();
    schedule.step();
    require_near(net, alone, "is that of " + name + " after step " + std::to_string(step));
    for (const torch::Tensor& parameter : net->parameters()) {
      require(!parameter.grad().defined(), "no parameter has a .grad after a step");
      require(is_same_everywhere(group, parameter), "parameters are the same on all ranks");
    }
  }
  require(optimizer.steps() == 12, "every step updated");
}

/// A parameter without a gradient stays, and so does its number of updates.
inline void check_unused_updates(const Group& group) {
  using torch::optim::AdamW;
  const torch::optim::AdamWOptions options = torch::optim::AdamWOptions(0.05).weight_decay(0.1);
  for (const auto graph : {dtrain::libtorch::GraphPolicy::dynamic_graph, dtrain::libtorch::GraphPolicy::static_graph}) {
    const bool is_static = graph == dtrain::libtorch::GraphPolicy::static_graph;
    nn::Sequential alone(nn::Linear(6, 2), nn::Linear(6, 2));
    nn::Sequential net(nn::Linear(6, 2), nn::Linear(6, 2));
    const dtrain::DdpOptions unused{.allow_unused_parameters = true};
    DistributedDataParallel ddp_alone{alone, group, unused, BufferPolicy::rank0, graph};
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < 4; ++i)
        net->parameters()[i].copy_(alone->parameters()[i]);
    }
    DistributedDataParallel ddp{net, group, unused, BufferPolicy::rank0, graph};
    AdamW updating(alone->parameters(), options);
    AdamW described(net->parameters(), options);
    ShardedOptimizer optimizer{ddp, described};
    for (int step = 0; step < 7; ++step) {
      const bool uses_second = !is_static && step % 3 == 1 && group.rank() == 0;
      const auto loss = [&](const nn::Sequential& of) {
        const torch::Tensor inputs = inputs_of(group.rank(), step);
        torch::Tensor output = of->children()[0]->as<nn::Linear>()->forward(inputs);
        if (uses_second) output = output + of->children()[1]->as<nn::Linear>()->forward(inputs);
        return loss_of(output);
      };
      alone->zero_grad(true);
      for (torch::Tensor& parameter : alone->parameters())
        parameter.mutable_grad() = torch::Tensor();
      ddp_alone.backward(loss(alone));
      updating.step();
      ddp.backward(loss(net), optimizer);
      require_near(net, alone, "that a step does not use is as LibTorch leaves it");
    }
    const std::int64_t second = is_static ? 0 : 2;
    require(optimizer.updates() == std::vector<std::int64_t>{7, 7, second, second}, "updates count by parameter");
  }
}

/// A loss that is infinite on one rank updates nothing, and the steps go on after it.
inline void check_refused_update(const Group& group) {
  nn::Sequential net = two_layers(3);
  DistributedDataParallel ddp{net, group};
  torch::optim::AdamW described(net->parameters(), torch::optim::AdamWOptions(0.05));
  ShardedOptimizer optimizer{ddp, described};
  const torch::Tensor before = net->parameters()[0].detach().clone();
  const auto finite = [](const dtrain::ShardedGradients& gradients) { return gradients.gradient_norm().finite; };
  const double factor = group.rank() == 0 ? std::numeric_limits<double>::infinity() : 1;
  ddp.backward(loss_of(ddp(inputs_of(group.rank(), 0))) * factor, optimizer, finite);
  require(torch::equal(before, net->parameters()[0]) && optimizer.updates()[0] == 0, "a refused step updates nothing");
  ddp.backward(loss_of(ddp(inputs_of(group.rank(), 0))), optimizer, finite);
  require(!torch::equal(before, net->parameters()[0]) && optimizer.updates()[0] == 1, "the next one updates");
}

/// A graph that was made before an update cannot be gone through after it.
inline void check_version(const Group& group) {
  nn::Sequential net = two_layers(4);
  DistributedDataParallel ddp{net, group};
  torch::optim::SGD described(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  ShardedOptimizer optimizer{ddp, described};
  const torch::Tensor earlier = loss_of(net->forward(inputs_of(0, 0)));
  ddp.backward(loss_of(ddp(inputs_of(0, 0))), optimizer);
  bool is_refused = false;
  try {
    earlier.backward();
  } catch (const c10::Error& error) {
    is_refused = std::string(error.what()).find("modified by an inplace operation") != std::string::npos;
  }
  require(is_refused, "LibTorch notices that the values are others");
}

inline void check_shares(const Group& group) {
  nn::Sequential net(nn::Linear(256, 512));
  net->to(torch::kBFloat16);
  DistributedDataParallel ddp{net, group};
  torch::optim::AdamW described(net->parameters(), torch::optim::AdamWOptions(0.05));
  ShardedOptimizer optimizer{ddp, described};
  const torch::Tensor before = net->parameters()[0].detach().clone();
  ddp.backward(ddp(torch::ones({4, 256}, torch::kBFloat16)).square().mean(), optimizer);
  require(!torch::equal(before, net->parameters()[0]), "BFloat16 parameters are updated");
  const double of_all = 3 * 4 * (256 * 512 + 512);  // two arrays, and the values, in f32
  const double share = static_cast<double>(optimizer.state_bytes()) * group.world_size() / of_all;
  require(share >= 1 && share < 1.02, "each rank has its share of the state");
  require_error("has no amsgrad, which the options of this torch::optim::AdamW ask for", [&] {
    torch::optim::AdamW refused(net->parameters(), torch::optim::AdamWOptions(0.05).amsgrad(true));
    ShardedOptimizer{ddp, refused};
  });
  require_error("has no dampening", [&] {
    torch::optim::SGD refused(net->parameters(), torch::optim::SGDOptions(0.05).dampening(0.1));
    ShardedOptimizer{ddp, refused};
  });
}

}  // namespace libtorch_probe
