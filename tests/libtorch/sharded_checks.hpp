#pragma once
/// @file
/// Checks of libtorch::ShardedOptimizer against LibTorch's own optimizers behind ddp.backward(loss).

#include "expectations.hpp"

namespace libtorch_probe {

/// Tolerances: relative 1e-5 and absolute 1e-6, of Double parameters 1e-14 and 1e-15.
inline void require_near(const nn::Sequential& net, const nn::Sequential& alone, const std::string& what) {
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    const torch::Tensor parameter = net->parameters()[i];
    const bool is_double = parameter.scalar_type() == torch::kDouble;
    require(torch::allclose(parameter, alone->parameters()[i], is_double ? 1e-14 : 1e-5, is_double ? 1e-15 : 1e-6),
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
        require(ddp.backward(loss, optimizer, {.clip_norm = 0.1}), "a clipped step updates");
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
  require(described.state().empty(), "the described optimizer keeps no state");
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
  const dtrain::StepOptions options{
      .inspect = [](dtrain::StepGradients& gradients) { return gradients.gradient_norm().finite; }};
  const double factor = group.rank() == 0 ? std::numeric_limits<double>::infinity() : 1;
  require(!ddp.backward(loss_of(ddp(inputs_of(group.rank(), 0))) * factor, optimizer, options), "a step is refused");
  require(torch::equal(before, net->parameters()[0]) && optimizer.updates()[0] == 0, "a refused step updates nothing");
  require(ddp.backward(loss_of(ddp(inputs_of(group.rank(), 0))), optimizer, options), "the next one is not");
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
  const auto require_share = [&](std::size_t bytes, double of_all) {
    const double share = static_cast<double>(bytes) * group.world_size() / of_all;
    require(share >= 1 && share < 1.02, "each rank has its share of the state");
  };
  require_share(optimizer.state_bytes(), 3 * 4 * (256 * 512 + 512));  // two arrays, and the values, in f32
  nn::Linear doubles(256, 512);
  doubles->to(torch::kFloat64);
  DistributedDataParallel ddp_doubles{doubles, group};
  torch::optim::AdamW described_doubles(doubles->parameters(), torch::optim::AdamWOptions(0.05));
  require_share(ShardedOptimizer{ddp_doubles, described_doubles}.state_bytes(), 2 * 8 * (256 * 512 + 512));
  require_error("has no amsgrad, which the options of this torch::optim::AdamW ask for", [&] {
    torch::optim::AdamW refused(net->parameters(), torch::optim::AdamWOptions(0.05).amsgrad(true));
    ShardedOptimizer{ddp, refused};
  });
  require_error("has no dampening", [&] {
    torch::optim::SGD refused(net->parameters(), torch::optim::SGDOptions(0.05).dampening(0.1));
    ShardedOptimizer{ddp, refused};
  });
}

/// Optimizers whose state or parameters a sharded optimizer would not have.
inline void check_refused_optimizers(const Group& group) {
  using namespace torch::optim;
  nn::Sequential net = two_layers(0), other = two_layers(1);
  DistributedDataParallel ddp{net, group};
  const auto check = [&](auto& optimizer) {
    ShardedOptimizer{ddp, optimizer};
    optimizer.zero_grad();
    ddp.backward(loss_of(ddp(inputs_of(0, 0))));
    optimizer.step();
    require_error("that has made updates already", [&] { ShardedOptimizer{ddp, optimizer}; });
  };
  const std::vector<torch::Tensor> parameters = net->parameters();
  AdamW adamw(parameters, AdamWOptions(0.1));
  SGD sgd(parameters, SGDOptions(0.1).momentum(0.9));
  RMSprop rmsprop(parameters, RMSpropOptions(0.1));
  check(adamw);
  check(sgd);
  check(rmsprop);
  Adagrad adagrad(parameters, AdagradOptions(0.1));  // which a ShardedOptimizer would leave without a state
  ddp.backward(loss_of(ddp(inputs_of(0, 0))));
  adagrad.step();
  require_error("that has made updates already", [&] { ShardedOptimizer{ddp, adagrad}; });
  std::vector<torch::Tensor> all = parameters;
  all.push_back(other->parameters()[1]);
  AdamW of_both(all, AdamWOptions(0.1));
  require_error("parameter 4 of group 0 of a sharded optimizer is not of its DistributedDataParallel", [&] {
    ShardedOptimizer{ddp, of_both};
  });
  other->parameters()[1].requires_grad_(false);
  ShardedOptimizer{ddp, of_both};
}

/// Double parameters beside others have no state in common with them.
inline void check_mixed_types(const Group& group) {
  nn::Sequential net(nn::Linear(6, 5), nn::Linear(5, 3));
  net[1]->to(torch::kFloat64);
  for (int round = 0; round < 2; ++round) {
    DistributedDataParallel ddp{net, group};
    torch::optim::SGD described(net->parameters(), 0.1);
    require_error(round == 0 ? "got parameter 2 '1.weight', of f64, beside parameter 1 '0.bias', of f32; f64"
                             : "got parameter 2 '1.weight', of f32, beside parameter 1 '0.bias', of f64; f64",
                  [&] {
                    ShardedOptimizer{ddp, described};
                  });
    net[0]->to(torch::kFloat64);
    net[1]->to(torch::kFloat32);
  }
}

/// Stage 2 gives the weights the bits of stage 1, through passes under no_sync, unused parameters, clipping, and a step
/// that is refused. No .grad is left, and under no_sync each is this rank's own sum.
inline void check_divided_gradients(const Group& group) {
  using torch::optim::AdamW;
  const auto make = [&](int seed) {
    torch::manual_seed(static_cast<std::uint64_t>(seed));
    return nn::Sequential(nn::Linear(6, 5), nn::Tanh(), nn::Linear(5, 3), nn::Linear(6, 3));
  };
  nn::Sequential whole = make(1);
  nn::Sequential net = make(1 + group.rank());
  const dtrain::DdpOptions options{.bucket_bytes = 64, .allow_unused_parameters = true};
  DistributedDataParallel ddp_whole{whole, group, options};
  DistributedDataParallel ddp{net, group, options};
  AdamW described_whole(whole->parameters(), torch::optim::AdamWOptions(0.02).weight_decay(0.1));
  AdamW described(net->parameters(), torch::optim::AdamWOptions(0.02).weight_decay(0.1));
  ShardedOptimizer stage_1{ddp_whole, described_whole};
  ShardedOptimizer optimizer{ddp, described, {.stage = 2}};
  const auto loss = [&](nn::Sequential& of, int step, int pass) {
    const torch::Tensor inputs = inputs_of(group.rank(), 2 * step + pass);
    torch::Tensor output = of->children()[0]->as<nn::Linear>()->forward(inputs).tanh();
    output = of->children()[2]->as<nn::Linear>()->forward(output);
    if (step % 4 == 1) output = output + of->children()[3]->as<nn::Linear>()->forward(inputs);
    return loss_of(output);
  };
  const dtrain::StepOptions clipped{
      .clip_norm = 0.1, .inspect = [](dtrain::StepGradients& gradients) { return gradients.gradient_norm().finite; }};
  for (int step = 0; step < 10; ++step) {
    if (step % 3 == 2) {
      const auto held_whole = ddp_whole.no_sync();
      const auto held = ddp.no_sync();
      ddp_whole.backward(loss(whole, step, 0));
      for (int pass = 1; pass <= 2; ++pass) {
        ddp.backward(loss(net, step, 0) * 0.5);
        const torch::Tensor sum = net->parameters()[0].grad();
        require(are_close(sum, whole->parameters()[0].grad() * (0.5 * pass)), "passes under no_sync add up in .grad");
      }
    }
    const double factor = step == 5 && group.rank() == 0 ? std::numeric_limits<double>::infinity() : 1;
    ddp_whole.backward(loss(whole, step, 1) * factor, stage_1, clipped);
    ddp.backward(loss(net, step, 1) * factor, optimizer, clipped);
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      require(torch::equal(net->parameters()[i], whole->parameters()[i]),
              "parameter " + std::to_string(i) + " has the bits of stage 1 after step " + std::to_string(step));
      require(!net->parameters()[i].grad().defined(), "no parameter has a .grad after a step");
    }
  }
  require(optimizer.updates() == stage_1.updates() && optimizer.steps() == 9, "the same steps updated");
  require_error("has left no memory for all gradients", [&] { ddp.backward(loss(net, 0, 0)); });
}

/// Of stage 2: a share of the gradients, and the two largest successive buckets. Gradients of other layouts are right.
inline void check_divided_memory(const Group& group) {
  nn::Sequential net;
  for (int i = 0; i < 40; ++i)
    net->push_back(nn::Linear(nn::LinearOptions(64, 64).bias(false)));
  const std::size_t layer = net->parameters()[0].nbytes();
  DistributedDataParallel ddp{net, group, {.bucket_bytes = 2 * layer, .first_bucket_bytes = 2 * layer}};
  torch::optim::SGD described(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  {
    const ShardedOptimizer stage_1{ddp, described};
    require(stage_1.gradient_bytes() == 40 * layer, "stage 1 keeps all gradients");
  }
  const std::size_t kept = 40 * layer / static_cast<std::size_t>(group.world_size()) + 4 * layer;
  const torch::Tensor gradient = [&] {  // of before the construction, in dtrain's memory
    ddp.backward(ddp(torch::ones({4, 64})).square().mean());
    return net->parameters()[0].grad();
  }();
  {
    const auto held = ddp.no_sync();
    ddp.backward(ddp(torch::ones({4, 64})).square().mean());
  }
  const torch::Tensor before = gradient.clone();
  ShardedOptimizer optimizer{ddp, described, {.stage = 2}};
  require(torch::equal(net->parameters()[0].grad(), before), ".grad keeps its elements");
  net->zero_grad();
  for (int step = 0; step < 3; ++step) {
    ddp.backward(ddp(torch::ones({4, 64})).square().mean(), optimizer);
    const auto bytes = static_cast<double>(optimizer.gradient_bytes());
    require(bytes >= static_cast<double>(kept) && bytes < 1.02 * static_cast<double>(kept), "stage 2 keeps its share");
  }
  const bool is_own = group.world_size() == 1;  // in LibTorch's memory, which zero_grad() may have cleared
  require(is_own || torch::equal(gradient, before), "a .grad that the program keeps stays");
  require_error("has no early_update", [&] { ShardedOptimizer{ddp, described, {.early_update = true}}; });
  for (const int stage : {0, 3}) {
    require_error("ShardedOptions::stage is " + std::to_string(stage) + "; give 1", [&] {
      ShardedOptimizer{ddp, described, {.stage = stage}};
    });
  }
}

/// Gradients that are sparse, expanded, laid out otherwise than their parameter, or conjugates that LibTorch has not
/// computed yet.
inline void check_divided_layouts(const Group& group) {
  struct Net : nn::Module {
    nn::Embedding table{register_module("table", nn::Embedding(nn::EmbeddingOptions(7, 3).sparse(true)))};
    torch::Tensor expanded = register_parameter("expanded", torch::zeros({5}));
    torch::Tensor permuted = register_parameter("permuted", torch::ones({4, 3}).t());
    torch::Tensor wave =
        register_parameter("wave", torch::full({4}, c10::complex<double>(1, 2), c10::get_default_complex_dtype()));
    torch::Tensor forward(const torch::Tensor& indices) {
      const torch::Tensor conjugate = torch::conj(wave);
      return table(indices).square().sum() + expanded.sum() + (permuted * torch::arange(12.0).reshape({3, 4})).sum() +
             torch::real(conjugate * conjugate.detach()).sum();
    }
  };
  const auto make = [] {
    torch::manual_seed(5);
    return std::make_shared<Net>();
  };
  const auto whole = make();
  const auto net = make();
  DistributedDataParallel ddp_whole{whole, group};
  DistributedDataParallel ddp{net, group};
  torch::optim::SGD described_whole(whole->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  torch::optim::SGD described(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  ShardedOptimizer stage_1{ddp_whole, described_whole};
  ShardedOptimizer optimizer{ddp, described, {.stage = 2}};
  for (int step = 0; step < 3; ++step) {
    const torch::Tensor indices = torch::tensor({group.rank(), 2, 2 + step}, torch::kLong);
    ddp_whole.backward(ddp_whole(indices), stage_1);
    ddp.backward(ddp(indices), optimizer);
    for (std::size_t i = 0; i < 4; ++i)
      require(torch::equal(net->parameters()[i], whole->parameters()[i]), "any layout has the bits of stage 1");
  }
}

}  // namespace libtorch_probe
