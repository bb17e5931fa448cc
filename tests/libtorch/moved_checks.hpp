#pragma once
/// @file
/// Checks of values that torch::load and set_data put elsewhere, beside sharded optimizers, LocalSgd and checkpoints.

#include <algorithm>
#include <functional>

#include "expectations.hpp"

namespace libtorch_probe {

inline constexpr int width = 256;

/// How values get other memory.
enum class Move { load, load_twice, load_before_the_optimizer, set_data };

/// Elements that are `value`.
inline nn::Linear filled(double value, torch::Dtype dtype) {
  nn::Linear net(width, width);
  const torch::NoGradGuard no_grad;
  net->weight.fill_(value);
  net->bias.fill_(value);
  net->to(dtype);
  return net;
}

inline void load(nn::Linear& net, double value) {
  std::stringstream file;
  torch::save(filled(value, net->weight.scalar_type()), file);
  torch::load(net, file);
}

inline void require_all(const torch::Tensor& tensor, double value, const std::string& what) {
  require(torch::equal(tensor.detach().to(torch::kFloat64), torch::full(tensor.sizes(), value, torch::kFloat64)), what);
}

/// Three steps that subtract 1 from each weight, of 1, and from where a move has put 20.
inline void check_moved(const Group& group, int stage, torch::Dtype dtype, Move move) {
  nn::Linear net = filled(1, dtype);
  DistributedDataParallel ddp{net, group};
  torch::optim::SGD described(net->parameters(), 0.5);
  const torch::Tensor before = net->weight.detach();  // keeps the memory
  if (move == Move::load_before_the_optimizer) load(net, 20);
  ShardedOptimizer optimizer{ddp, described, {.stage = stage}};
  const auto step = [&] { ddp.backward(ddp(torch::ones({2, width}, dtype)).to(torch::kFloat32).sum(), optimizer); };
  if (move == Move::set_data) {
    step();
    require_all(net->weight, 0, "a step updates");
    net->weight.set_data(torch::full({width, width}, 20, dtype));
  } else if (move != Move::load_before_the_optimizer) {
    load(net, 20);
    if (move == Move::load_twice) load(net, 20);
  }
  for (int i = 0; i < 3; ++i)
    step();
  require_all(net->weight, 17, "steps update the values that are there now");
  require_all(before, move == Move::set_data ? 0 : 1, "the memory before is left alone");
}

inline void check_moved_of_stage(const Group& group, int stage) {
  for (const torch::Dtype dtype : {torch::kFloat32, torch::kFloat64, torch::kBFloat16}) {
    for (const Move move : {Move::load, Move::load_twice, Move::load_before_the_optimizer, Move::set_data})
      check_moved(group, stage, dtype, move);
  }
}

/// The same with nothing that keeps the memory before: what is written there is found by the heap.
inline void check_moved_heap(const Group& group) {
  nn::Linear net = filled(1, torch::kFloat32);
  DistributedDataParallel ddp{net, group};
  torch::optim::AdamW described(net->parameters(), torch::optim::AdamWOptions(0.01));
  ShardedOptimizer optimizer{ddp, described};
  for (int i = 0; i < 4; ++i) {
    load(net, 20);
    std::vector<torch::Tensor> reused;
    for (int n = 0; n < 4; ++n)
      reused.push_back(torch::full({width, width}, 5));
    ddp.backward(ddp(torch::ones({2, width})).sum(), optimizer);
    require(net->weight.max().item<double>() < 20, "a step updates what was loaded");
    for (const torch::Tensor& other : reused)
      require_all(other, 5, "no other tensor is written to");
  }
}

inline void check_moved_values(const Group& group) {
  for (const int stage : {1, 2})
    check_moved_of_stage(group, stage);
  check_moved_heap(group);
}

/// Averages of weights for an evaluation: values that come back are the f32 ones of before.
inline void check_swapped_values(const Group& group) {
  const auto train = [&](bool swaps) {
    nn::Linear net = filled(1, torch::kBFloat16);
    DistributedDataParallel ddp{net, group};
    torch::optim::SGD described(net->parameters(), torch::optim::SGDOptions(0.001).momentum(0.9));
    ShardedOptimizer optimizer{ddp, described};
    const torch::Tensor average = torch::full({width, width}, 3, torch::kBFloat16);
    for (int step = 0; step < 4; ++step) {
      ddp.backward(ddp(torch::ones({2, width}, torch::kBFloat16)).to(torch::kFloat32).mean(), optimizer);
      if (!swaps) continue;
      const torch::Tensor own = net->weight.data();
      net->weight.set_data(average);
      const torch::NoGradGuard no_grad;
      require(ddp(torch::ones({1, width}, torch::kBFloat16)).max().item<float>() > 700, "evaluation uses the average");
      net->weight.set_data(own);
    }
    require_all(average, 3, "an average that was swapped out again stays");
    return net->weight.detach().clone();
  };
  require(torch::equal(train(false), train(true)), "swapped values leave a training's bits");
}

/// A file that is written between torch::load and the next step has the loaded weights in f32 too.
inline void check_saved_after_move(const Group& group, const std::string& file) {
  dtrain::DistributedSampler sampler{group, {.dataset_size = 60, .global_batch = 12}};
  const auto run = [&](bool saves) {
    nn::Linear net = filled(1, torch::kBFloat16);
    DistributedDataParallel ddp{net, group};
    torch::optim::SGD described(net->parameters(), 0.5);
    ShardedOptimizer optimizer{ddp, described};
    dtrain::libtorch::SamplerPosition position{sampler};
    load(net, saves ? 20 : 90);
    if (saves) {
      dtrain::save_checkpoint(group, file, net, optimizer, position);
    } else {
      require(dtrain::load_checkpoint(group, file, net, optimizer, position), "there is a file");
    }
    for (int i = 0; i < 3; ++i)
      ddp.backward(ddp(torch::ones({2, width}, torch::kBFloat16)).to(torch::kFloat32).sum(), optimizer);
    require_all(net->weight, 17, "a checkpoint has what torch::load brought");
  };
  run(true);
  run(false);
}

/// Averages by hooks::LocalSgd, of weights that were loaded before a step, after it, and after the wrapper's end.
inline void check_moved_local(const Group& group) {
  dtrain::hooks::LocalSgd local{{.every = 1}};
  nn::Linear net = filled(1, torch::kFloat32);
  const torch::Tensor before = net->weight.detach();
  {
    DistributedDataParallel ddp{net, group, {}, std::ref(local), BufferPolicy::none};
    torch::optim::SGD sgd(net->parameters(), 0.5);
    load(net, 20);
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      ddp.backward(ddp(torch::full({2, width}, static_cast<float>(group.rank()))).sum());
      sgd.step();
      if (step == 1) load(net, 20 - group.rank());
      local.average(group);
      require_all(net->weight, 20 - 0.5 * (group.world_size() - 1), "averages are of the present weights");
      load(net, 20);
    }
  }
  load(net, 40 - group.rank());
  local.average_now(group);
  require_all(net->weight, 40 - 0.5 * (group.world_size() - 1), "they are without the wrapper, too");
  require_all(before, 1, "the memory before is left alone");
}

/// Another module may have the memory that values of a wrapped one have left.
inline void check_moved_bindings(const Group& group) {
  std::vector<float> memory(12);
  nn::Linear first(6, 2);
  first->weight.set_data(torch::from_blob(memory.data(), {2, 6}));
  DistributedDataParallel ddp{first, group};
  first->weight.set_data(torch::ones({2, 6}));
  nn::Linear second(6, 2);
  second->weight.set_data(torch::from_blob(memory.data(), {2, 6}));
  DistributedDataParallel other{second, group};
  other.backward(other(inputs_of(0, 0)).sum());
  ddp.backward(ddp(inputs_of(0, 0)).sum());
  require_error("is bound to another DistributedDataParallel", [&] { DistributedDataParallel{first, group}; });
}

}  // namespace libtorch_probe
