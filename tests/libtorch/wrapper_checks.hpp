#pragma once
/// @file
/// Checks of what a program calls on a wrapper beside its step: buffers, norms, other wrappers, and wrapping again.

#include <malloc.h>

#include <cmath>

#include "expectations.hpp"

namespace libtorch_probe {

/// Modules that no operator() of the wrapper calls.
inline void check_modules_buffers(const Group& group) {
  const double mean = (group.world_size() - 1) / 2.0;
  for (const auto& [policy, expected] : std::vector<std::pair<BufferPolicy, double>>{
           {BufferPolicy::rank0, 0}, {BufferPolicy::mean, mean}, {BufferPolicy::none, group.rank()}}) {
    nn::BatchNorm1d first(6), second(6);
    DistributedDataParallel ddp{dtrain::libtorch::Modules{first.ptr(), second.ptr()}, group, {}, policy};
    first->running_mean.fill_(group.rank());
    second->running_mean.fill_(group.rank());
    {
      const dtrain::ddp::NoSync held = ddp.no_sync();
      ddp.synchronize_buffers();
      require(torch::equal(second->running_mean, torch::full({6}, group.rank())), "no_sync() leaves buffers alone");
    }
    ddp.synchronize_buffers();
    for (const nn::BatchNorm1d& each : {first, second})
      require(torch::equal(each->running_mean, torch::full({6}, expected)), "all modules' buffers follow their policy");
    ddp.backward(loss_of(second->forward(first->forward(inputs_of(0, 0)))));
  }
}

/// Clipping and a LossScaler with LibTorch's own optimizer, also where gradients would stay in LibTorch's memory.
inline void check_norms(const Group& group) {
  for (const bool set_to_none : {false, true}) {
    nn::Sequential alone = two_layers(0);
    nn::Sequential net = two_layers(0);
    DistributedDataParallel ddp{net, group, {.bucket_bytes = 0}};
    dtrain::LossScaler scaler({.initial_scale = 512, .growth_interval = 1});
    for (int step = 0; step < 3; ++step) {
      alone->zero_grad();
      for (int rank = 0; rank < group.world_size(); ++rank)
        (loss_of(alone->forward(inputs_of(rank, step))) / group.world_size()).backward();
      const double norm = nn::utils::clip_grad_norm_(alone->parameters(), 0.01);
      net->zero_grad(set_to_none);
      const bool clips_in_step = step != 2;
      const dtrain::StepOptions options{.clip_norm = clips_in_step ? 0.01 : 0, .scaler = &scaler};
      require(ddp.backward(loss_of(ddp(inputs_of(group.rank(), step))) * scaler.scale(), options),
              "finite gradients are unscaled");
      if (!clips_in_step) ddp.clip_gradients(0.01);
      require(std::abs(ddp.gradient_norm().before_clipping - norm) < 1e-5 * norm, "the norm is LibTorch's");
      for (std::size_t i = 0; i < net->parameters().size(); ++i)
        require(are_close(net->parameters()[i].grad(), alone->parameters()[i].grad(), 1e-4),
                "gradients are unscaled and clipped");
    }
    require(scaler.scale() == 4096, "the scale grows");
    net->zero_grad(set_to_none);
    const float factor = group.rank() == group.world_size() - 1 ? std::numeric_limits<float>::infinity() : 1;
    const bool updates = ddp.backward(loss_of(ddp(inputs_of(0, 0))) * factor, {.scaler = &scaler});
    require(!updates && scaler.scale() == 2048, "an overflow of one rank is noticed on all");
    ddp.backward(loss_of(ddp(inputs_of(0, 0))));
    require_error("the last step did not measure it", [&] { ddp.clip_gradients(1); });
    auto* const of_device = reinterpret_cast<dtrain::ddp::DeviceLossScaler*>(&scaler);  // only its address is used
    require_error("LibTorch's optimizers do not read its found_inf",
                  [&] { ddp.backward(loss_of(ddp(inputs_of(0, 0))), {.scaler = of_device}); });
  }
}

/// A generator's pass goes through the wrapped discriminator. integration.libtorch looks for a warning.
inline void check_other_wrapper(const Group& group) {
  nn::Linear generator(6, 6), discriminator(6, 2);
  DistributedDataParallel makes{generator, group};
  DistributedDataParallel judges{discriminator, group};
  for (int step = 0; step < 2; ++step) {
    discriminator->zero_grad();
    judges.backward(loss_of(judges(makes(inputs_of(group.rank(), step)).detach())));
    generator->zero_grad();
    makes.backward(loss_of(judges(makes(inputs_of(group.rank(), step)))));
    require(is_same_everywhere(group, generator->weight.grad()), "the generator's gradient is reduced");
  }
}

/// x -> layer(x), computed again in the backward pass.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const nn::Linear& layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(&layer);
    const torch::NoGradGuard no_grad;
    return nn::Linear(layer)->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    nn::Linear layer = *reinterpret_cast<const nn::Linear*>(context->saved_data["layer"].toInt());
    const torch::AutoGradMode records(true);
    const torch::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({layer->forward(x)}, {gradients[0]});
    return {x.grad(), torch::Tensor()};
  }
};

/// A layer takes part in two recomputed parts of a pass.
inline void check_recomputed(const Group& group) {
  using dtrain::libtorch::GraphPolicy;
  const auto loss = [](const nn::Linear& shared, nn::Linear& own, int rank, int step, int times) {
    torch::Tensor x = own->forward(inputs_of(rank, step));
    for (int i = 0; i < times; ++i)
      x = torch::tanh(Recomputed::apply(x, shared));
    return loss_of(x);
  };
  for (const bool sharded : {false, true}) {
    const auto make = [] {
      torch::manual_seed(4);
      return std::pair(nn::Linear(6, 6), nn::Linear(6, 6));
    };
    auto [shared, own] = make();
    auto [shared_alone, own_alone] = make();
    DistributedDataParallel ddp{
        dtrain::libtorch::Modules{own.ptr(), shared.ptr()}, group, {}, GraphPolicy::static_graph};
    const auto both = [](const nn::Linear& a, const nn::Linear& b) {
      std::vector<torch::Tensor> all = a->parameters();
      for (const torch::Tensor& each : b->parameters())
        all.push_back(each);
      return all;
    };
    torch::optim::SGD optimizer(both(own, shared), torch::optim::SGDOptions(0.1).momentum(0.5));
    torch::optim::SGD optimizer_alone(both(own_alone, shared_alone), torch::optim::SGDOptions(0.1).momentum(0.5));
    std::optional<ShardedOptimizer<torch::optim::SGD, Policy::ChannelBackend::Communicator>> shards;
    if (sharded) shards.emplace(ddp, optimizer);
    for (int step = 0; step < 4; ++step) {
      optimizer_alone.zero_grad();
      for (int rank = 0; rank < group.world_size(); ++rank)
        (loss(shared_alone, own_alone, rank, step, 2) / group.world_size()).backward();
      optimizer_alone.step();
      optimizer.zero_grad();
      const torch::Tensor mine = loss(shared, own, group.rank(), step, 2);
      if (sharded) {
        ddp.backward(mine, *shards);
      } else {
        ddp.backward(mine);
        optimizer.step();
      }
      require(are_close(shared->weight, shared_alone->weight) && are_close(own->bias, own_alone->bias),
              "a layer in two recomputed parts trains as with LibTorch alone");
    }
  }
}

/// A pass that adds to a gradient more often than the wrapper expects.
inline void add_too_often(const Group& group, bool is_static) {
  using dtrain::libtorch::GraphPolicy;
  nn::Linear shared(6, 6), own(6, 6);
  DistributedDataParallel ddp{dtrain::libtorch::Modules{own.ptr(), shared.ptr()},
                              group,
                              {},
                              is_static ? GraphPolicy::static_graph : GraphPolicy::dynamic_graph};
  for (int times = 1; times < 3; ++times) {
    torch::Tensor x = own->forward(inputs_of(0, 0));
    for (int i = 0; i < times; ++i)
      x = Recomputed::apply(x, shared);
    ddp.backward(loss_of(x));
  }
}

/// Rank r has r + 1 steps; the others' steps have nothing of it.
inline void check_uneven(const Group& group) {
  for (const bool sharded : {false, true}) {
    const auto options = torch::optim::AdamOptions(0.05);
    nn::Sequential alone = two_layers(2);
    torch::optim::Adam optimizer_alone(alone->parameters(), options);
    for (int step = 0; step < group.world_size(); ++step) {
      optimizer_alone.zero_grad();
      for (int rank = step; rank < group.world_size(); ++rank)
        (loss_of(alone->forward(inputs_of(rank, step))) / group.world_size()).backward();
      optimizer_alone.step();
    }
    nn::Sequential net = two_layers(2);
    DistributedDataParallel ddp{net, group, {.bucket_bytes = 64}, BufferPolicy::mean};
    torch::optim::Adam optimizer(net->parameters(), options);
    std::optional<ShardedOptimizer<torch::optim::Adam, Policy::ChannelBackend::Communicator>> shards;
    if (sharded) shards.emplace(ddp, optimizer);
    dtrain::UnevenInputs inputs{group};
    for (int step = 0; step <= group.rank(); ++step) {
      inputs.begin_step();
      optimizer.zero_grad();
      const torch::Tensor loss = loss_of(ddp(inputs_of(group.rank(), step)));
      sharded ? ddp.backward(loss, *shards) : ddp.backward(loss);
      if (!sharded) optimizer.step();
    }
    inputs.finish([&] {
      sharded ? ddp.step_without_data(*shards) : ddp.step_without_data();
      if (!sharded) optimizer.step();
    });
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      require(are_close(net->parameters()[i], alone->parameters()[i], 1e-4), "steps without data add nothing");
      require(is_same_everywhere(group, net->parameters()[i]), "all ranks have the same parameters");
    }
  }
}

/// A rank that has no samples in the first step of a static graph has some later.
inline void check_late_data(const Group& group) {
  nn::Sequential alone = two_layers(1), net = two_layers(1);
  DistributedDataParallel ddp{
      net, group, {.allow_unused_parameters = true}, dtrain::libtorch::GraphPolicy::static_graph};
  const int late = group.world_size() > 1 ? group.world_size() - 1 : -1;
  for (int step = 0; step < 3; ++step) {
    alone->zero_grad();
    for (int rank = 0; rank < group.world_size(); ++rank) {
      if (step > 0 || rank != late) (loss_of(alone->forward(inputs_of(rank, step))) / group.world_size()).backward();
    }
    net->zero_grad();
    if (step == 0 && group.rank() == late) {
      ddp.step_without_data();
    } else {
      ddp.backward(loss_of(ddp(inputs_of(group.rank(), step))));
    }
    for (std::size_t i = 0; i < net->parameters().size(); ++i)
      require(are_close(net->parameters()[i].grad(), alone->parameters()[i].grad()), "late samples are in the average");
  }
}

/// Steps without data that would hang, or lose a gradient.
inline void check_refused_without_data(const Group& group) {
  nn::Sequential norms(nn::Linear(6, 4), nn::BatchNorm1d(4));
  dtrain::libtorch::convert_sync_batchnorm(*norms, group);
  DistributedDataParallel normalised{norms, group};
  require_error("the SyncBatchNorm '1', whose passes communicate", [&] { normalised.step_without_data(); });

  nn::Sequential net = two_layers(0);
  DistributedDataParallel ddp{net, group};
  torch::optim::SGD described(net->parameters(), 0.1);
  ShardedOptimizer optimizer{ddp, described, {.stage = 2}};
  {
    const dtrain::ddp::NoSync held = ddp.no_sync();
    ddp.backward(loss_of(ddp(inputs_of(0, 0))));
  }
  require_error("the .grad of parameter '0.weight' waits for a step", [&] { ddp.step_without_data(optimizer); });
}

/// A step without data after passes under no_sync(), which it would lose: they are reduced or given up before it.
inline void check_held_without_data(const Group& group) {
  nn::Sequential net = two_layers(0);
  DistributedDataParallel ddp{net, group};
  for (const bool by_call : {true, false}) {
    {
      const dtrain::ddp::NoSync held = ddp.no_sync();
      ddp.backward(loss_of(ddp(inputs_of(0, 0))));
    }
    require_error("or call ddp.discard_accumulated()", [&] { ddp.step_without_data(); });
    by_call ? ddp.discard_accumulated() : net->zero_grad(true);
    ddp.step_without_data();
    require(net->parameters()[0].grad().abs().sum().item<double>() == 0, "a step of ranks without data has zeros");
  }
}

/// Bytes that malloc has given out.
inline std::size_t allocated_bytes() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

/// A program that is formed anew wraps the same module and makes the same optimizer's steps 100 times.
inline void check_many_wrappers(const Group& group) {
  nn::Sequential net(nn::Linear(6, 2000), nn::BatchNorm1d(2000), nn::Linear(2000, 100));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-3));
  const auto wrap = [&] {
    DistributedDataParallel ddp{net, group};
    optimizer.zero_grad();
    ddp.backward(loss_of(ddp(inputs_of(group.rank(), 0))));
    optimizer.step();
  };
  for (int i = 0; i < 10; ++i)
    wrap();
  const std::size_t before = allocated_bytes();
  for (int i = 0; i < 100; ++i)
    wrap();
  const std::size_t after = allocated_bytes();
  for (const torch::Tensor& parameter : net->parameters()) {
    require(torch::autograd::impl::grad_accumulator(parameter)->post_hooks().empty(), "no hook of a wrapper stays");
  }
  const std::size_t grown = after > before ? after - before : 0;
  // The gradients of one wrapper have 860,000 bytes.
  require(grown < 400'000, "100 wrappers leave nothing; " + std::to_string(grown) + " bytes are allocated more");
}

}  // namespace libtorch_probe
