#pragma once
/// @file
/// Checks of what steps do with gradients and buffers, against LibTorch alone.

#include "expectations.hpp"

namespace libtorch_probe {

inline void require_gradients(const nn::Sequential& net, const nn::Sequential& alone, const std::string& when) {
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    require(are_close(net->parameters()[i].grad(), alone->parameters()[i].grad()),
            "gradient " + std::to_string(i) + " of " + when + " is the mean of all ranks'");
  }
}

/// Steps on all ranks, with accumulation, several roots and a retained graph in turn, are those of one LibTorch on all
/// their samples.
inline void check_training(const Group& group, bool set_to_none) {
  nn::Sequential alone = two_layers(0);
  nn::Sequential net = two_layers(group.rank());
  DistributedDataParallel made{net, group, {.bucket_bytes = 0}};
  auto ddp = std::move(made);
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  torch::optim::SGD optimizer_alone(alone->parameters(), options);
  torch::optim::SGD optimizer(net->parameters(), options);
  std::vector<const void*> places;
  for (int step = 0; step < 6; ++step) {
    alone->zero_grad(set_to_none);
    net->zero_grad(set_to_none);
    for (int pass = 0; pass < 2; ++pass) {
      torch::Tensor mean = torch::zeros({});
      for (int rank = 0; rank < group.world_size(); ++rank)
        mean = mean + loss_of(alone->forward(inputs_of(rank, step + pass))) / group.world_size();
      (step == 3 ? 3 * mean : step == 4 ? 2 * mean : mean).backward();
      std::optional<dtrain::ddp::NoSync> held;
      if (pass == 0 && step % 2 == 0) held.emplace(ddp.no_sync());
      const torch::Tensor loss = loss_of(ddp(inputs_of(group.rank(), step + pass)));
      if (step == 3) {
        ddp.backward({loss, 2 * loss}, {});
      } else if (step == 4) {
        ddp.backward({loss}, {}, true);
        ddp.backward(loss);
      } else {
        ddp.backward(loss);
      }
    }
    require_gradients(net, alone, "step " + std::to_string(step));
    std::vector<const void*> now;
    for (const torch::Tensor& parameter : net->parameters())
      now.push_back(parameter.grad().data_ptr());
    require(step == 0 || group.world_size() == 1 || now == places, "gradients stay in dtrain's memory");
    places = now;
    optimizer_alone.step();
    optimizer.step();
  }
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    require(are_close(net->parameters()[i], alone->parameters()[i]), "parameters are those of LibTorch alone");
    require(is_same_everywhere(group, net->parameters()[i]), "parameters are the same on all ranks");
  }
}

/// Gradients that a hook casts are f16 numbers close to the mean, and go with the other arguments.
inline void check_hooks(const Group& group) {
  nn::Sequential alone = two_layers(0);
  nn::Sequential net = two_layers(0);
  DistributedDataParallel ddp{net, group, {}, dtrain::hooks::Cast<dtrain::float16>{}, BufferPolicy::none};
  for (int rank = 0; rank < group.world_size(); ++rank)
    (loss_of(alone->forward(inputs_of(rank, 0))) / group.world_size()).backward();
  ddp.backward(loss_of(ddp(inputs_of(group.rank(), 0))));
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    const torch::Tensor gradient = net->parameters()[i].grad();
    require(torch::equal(gradient, gradient.to(torch::kHalf).to(torch::kFloat)), "a cast gradient has 16 bits");
    require(are_close(gradient, alone->parameters()[i].grad(), 5e-3), "a cast gradient is the mean of all ranks'");
  }
  torch::optim::AdamW described(net->parameters());
  dtrain::libtorch::ShardedOptimizer optimizer{ddp, described};
  require_error("but a gradient hook reduces the buckets",
                [&] { ddp.backward(loss_of(ddp(inputs_of(group.rank(), 0))), optimizer); });
}

/// Two passes under no_sync and one without make the mean of the ranks' sums.
inline void check_accumulation(const Group& group) {
  for (const bool set_to_none : {false, true}) {
    nn::Sequential alone = two_layers(0);
    nn::Sequential net = two_layers(0);
    DistributedDataParallel ddp{net, group};
    for (int round = 0; round < 3; ++round) {
      alone->zero_grad();
      net->zero_grad(set_to_none);
      for (int pass = 0; pass < 3; ++pass) {
        for (int rank = 0; rank < group.world_size(); ++rank)
          (loss_of(alone->forward(inputs_of(rank, pass))) / group.world_size()).backward();
        std::optional<dtrain::ddp::NoSync> held;
        if (pass < 2) held.emplace(ddp.no_sync());
        ddp.backward(loss_of(ddp(inputs_of(group.rank(), pass))));
      }
      require_gradients(net, alone, "round " + std::to_string(round));
    }
  }
}

/// Passes under no_sync() that are given up, by discard_accumulated() or by zero_grad(true): the next step has nothing
/// of them, also not for a parameter that takes no part in it.
inline void check_discarded(const Group& group) {
  for (const bool by_call : {true, false}) {
    for (const bool is_measured : {false, true}) {
      nn::Linear first(6, 2), second(6, 2), alone(6, 2);
      DistributedDataParallel ddp{
          dtrain::libtorch::Modules{first.ptr(), second.ptr()}, group, {.allow_unused_parameters = true}};
      {
        const torch::NoGradGuard no_grad;
        alone->weight.copy_(first->weight);
      }
      const auto give_up = [&] {
        const dtrain::ddp::NoSync held = ddp.no_sync();
        ddp.backward((first->forward(inputs_of(0, 0)) + second->forward(inputs_of(0, 0))).sum());
      };
      for (int step = 0; step < 2; ++step) {
        give_up();
        if (by_call) {
          ddp.discard_accumulated();
        } else {
          first->zero_grad(true);
          second->zero_grad(true);
        }
        require(!first->weight.grad().defined() && !second->weight.grad().defined(), "passes are given up");
        alone->zero_grad(true);
        for (int rank = 0; rank < group.world_size(); ++rank)
          (alone->forward(inputs_of(rank, step)).sum() / group.world_size()).backward();
        ddp.backward(first->forward(inputs_of(group.rank(), step)).sum(), {.measure_norm = is_measured});
        require(are_close(first->weight.grad(), alone->weight.grad()), "a step has nothing of passes given up");
        require(!second->weight.grad().defined(), "a parameter that took part in passes given up only has no .grad");
        if (group.rank() == 0) {
          ddp.backward(first->forward(inputs_of(0, step)).sum() * 0 + second->forward(inputs_of(0, step)).sum());
        } else {
          ddp.backward(first->forward(inputs_of(0, step)).sum() * 0);
        }
        const double share = 1.0 / group.world_size();
        require(are_close(second->weight.grad(), inputs_of(0, step).sum(0).expand({2, 6}) * share),
                "other ranks' parts of a gradient are reduced alone");
        first->zero_grad(true);
        second->zero_grad(true);
      }
    }
  }
}

inline void check_buffers(const Group& group) {
  const double mean = (group.world_size() - 1) / 2.0;
  for (const auto& [policy, expected] : std::vector<std::pair<BufferPolicy, double>>{
           {BufferPolicy::rank0, 0}, {BufferPolicy::mean, mean}, {BufferPolicy::none, group.rank()}}) {
    nn::BatchNorm1d net(6);
    net->running_mean.fill_(group.rank());
    DistributedDataParallel ddp{net, group, {}, policy};
    require(net->running_mean.sum().item<double>() == 0, "wrapping gives every rank rank 0's buffers");
    for (int step = 0; step < 3; ++step)
      ddp.backward(loss_of(ddp(inputs_of(0, step))));
    require(net->num_batches_tracked.item<std::int64_t>() == 3, "the count of batches counts");
    for (const torch::Tensor& buffer : net->buffers())
      require(is_same_everywhere(group, buffer), "equal inputs leave equal buffers");
    net->eval();  // keeps the statistics
    net->running_mean.fill_(group.rank());
    ddp(inputs_of(0, 0));
    require(torch::equal(net->running_mean, torch::full({6}, expected)), "buffers follow their policy before a pass");
    net->running_mean.fill_(group.rank());
    const torch::NoGradGuard no_grad;
    if (group.rank() == 0) ddp(inputs_of(0, 0));
    require(torch::equal(net->running_mean, torch::full({6}, group.rank())), "evaluation is a rank's own");
  }
}

/// Two forward passes through BatchNorm before one backward pass: as a discriminator's of real and of made samples.
inline void check_two_passes(const Group& group) {
  for (const BufferPolicy policy : {BufferPolicy::rank0, BufferPolicy::mean, BufferPolicy::none}) {
    for (const bool trains : {true, false}) {
      const auto make = [&] {
        torch::manual_seed(3);
        nn::Sequential net(nn::Linear(6, 4), nn::BatchNorm1d(4), nn::Linear(4, 1));
        net->train(trains);
        return net;
      };
      nn::Sequential alone = make();
      nn::Sequential net = make();
      DistributedDataParallel ddp{net, group, {}, policy};
      const torch::Tensor expected = alone->forward(inputs_of(0, 0)), also = alone->forward(inputs_of(1, 1));
      (expected.square() + also).sum().backward();
      const torch::Tensor first = ddp(inputs_of(0, 0)), second = ddp(inputs_of(1, 1));
      ddp.backward((first.square() + second).sum());
      require_gradients(net, alone, "two passes");
      for (std::size_t i = 0; i < net->buffers().size(); ++i)
        require(are_close(net->buffers()[i], alone->buffers()[i]), "buffers are those of two passes");
    }
  }
}

/// The second layer takes part on rank 0 alone, and the third one nowhere.
inline void check_unused(const Group& group) {
  using dtrain::libtorch::GraphPolicy;
  for (const auto& [set_to_none, graph] :
       std::vector<std::pair<bool, GraphPolicy>>{{false, GraphPolicy::dynamic_graph},
                                                 {true, GraphPolicy::dynamic_graph},
                                                 {true, GraphPolicy::static_graph}}) {
    nn::Linear first(6, 2), second(6, 2), third(6, 2);
    torch::Tensor kept;
    {
      DistributedDataParallel ddp{dtrain::libtorch::Modules{first.ptr(), second.ptr(), third.ptr()},
                                  group,
                                  {.allow_unused_parameters = true},
                                  BufferPolicy::rank0,
                                  graph};
      for (int step = 0; step < 3; ++step) {
        for (nn::Linear module : {first, second, third})
          module->zero_grad(set_to_none);
        torch::Tensor loss = first->forward(inputs_of(0, step)).mean();
        if (group.rank() == 0) loss = loss + 3 * second->forward(inputs_of(0, step)).mean();
        ddp.backward(loss);
        require(are_close(second->weight.grad(), 3 * first->weight.grad() / group.world_size()),
                "what one rank used is divided by the number of ranks");
        require(is_same_everywhere(group, first->weight.grad()) && is_same_everywhere(group, second->weight.grad()),
                "all ranks have the same gradients");
        require(!third->weight.grad().defined(), "what no rank used keeps .grad undefined");
      }
      kept = first->weight.grad();
    }
    require(torch::equal(kept, first->weight.grad()) && kept.abs().sum().item<double>() > 0,
            "gradients outlive the wrapper");
  }
}

}  // namespace libtorch_probe
