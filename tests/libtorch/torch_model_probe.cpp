// Holds examples/libtorch/torch_model.hpp to what it says, on as many ranks as are started:
//   torch_model_probe --nproc-per-node=N           rank 0 prints "holds: ..." for each check
//   torch_model_probe --nproc-per-node=1 leave-out a parameter takes no part in the loss
//   torch_model_probe --nproc-per-node=2 throw     rank 1 throws in the middle of its backward pass
// Built where LibTorch is (examples/libtorch); integration.libtorch runs it.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "expectations.hpp"
#include "step_checks.hpp"
#include "torch_model.hpp"

namespace {

using namespace torch_model_probe;

/// Notes in which order gradients are announced, and what the first parameter's gradient is at that time.
struct Sink final : dtrain::Ready::Sink {
  explicit Sink(const torch::Tensor& parameter) : first(parameter) {}
  void ready(const dtrain::ReadyGradient& gradient) override {
    if (gradient.stream) throw std::logic_error("a stream");
    if (gradient.memory) throw std::logic_error("memory");
    order.push_back(gradient.parameter);
    first_was_zero.push_back(first.grad().abs().sum().item<double>() == 0);
  }

  torch::Tensor first;
  std::vector<std::size_t> order;
  std::vector<bool> first_was_zero;
};

void check_order(const Group&) {
  nn::Sequential network = two_layers();
  libtorch::TorchModel model(*network);
  std::vector<torch::Tensor> memory;
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    memory.push_back(torch::zeros_like(network->parameters()[i]));
    model.bind_gradient(i, libtorch::view_of(memory[i]));
  }
  Sink sink(network->parameters()[0]);
  model.backward(loss_of(network, inputs_of(0, 0)), dtrain::Ready(sink));
  require(sink.order.size() == 4, "each gradient is announced once");
  require(sink.order[0] >= 2 && sink.order[1] >= 2 && sink.first_was_zero[0] && sink.first_was_zero[1],
          "the last layer's gradients are announced before the first layer's are computed");
  require(torch::equal(memory[0], network->parameters()[0].grad()) && memory[0].abs().sum().item<double>() > 0,
          "gradients are in the memory that they were bound to");
  loss_of(network, inputs_of(0, 0)).backward();
  require(sink.order.size() == 4, "a backward pass that is none of dtrain's announces nothing");
}

struct Tied : nn::Module {
  torch::Tensor weight = register_parameter("weight", torch::ones({3}));
  torch::Tensor again = register_parameter("again", weight);
  torch::Tensor frozen = register_parameter("frozen", torch::ones({3}), false);
};

void check_tied(const Group& group) {
  Tied tied;
  libtorch::TorchModel model(tied);
  require(model.parameters().size() == 1 && model.parameters()[0].name == "weight",
          "a tied parameter is listed once, a frozen one not");
  dtrain::DistributedDataParallel ddp{model, group};
  const torch::Tensor loss = (tied.weight + 2 * tied.again + tied.frozen).sum() * (group.rank() + 1);
  ddp.backward([&](dtrain::Ready ready) { model.backward(loss, ready); });
  require(are_close(tied.weight.grad(), torch::full({3}, 3 * 0.5 * (group.world_size() + 1))),
          "both uses of a tied parameter are in its gradient");
}

struct One : nn::Module {
  explicit One(const torch::Tensor& value) : only(register_parameter("only", value)) {}
  torch::Tensor only;
};

void check_types(const Group& group) {
  const double mean = 0.5 * (group.world_size() + 1);
  for (const torch::Dtype dtype : {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16}) {
    One one(torch::full({5}, group.rank(), dtype));
    libtorch::TorchModel model(one);
    dtrain::DistributedDataParallel ddp{model, group};
    require(one.only.to(torch::kFloat64).abs().sum().item<double>() == 0, "every rank has rank 0's values");
    const torch::Tensor loss = (one.only.to(torch::kFloat32) * static_cast<float>(group.rank() + 1)).sum();
    ddp.backward([&](dtrain::Ready ready) { model.backward(loss, ready); });
    require(are_close(one.only.grad().to(torch::kFloat64), torch::full({5}, mean, torch::kFloat64)),
            "a gradient of any element type is averaged");
  }
  One last(torch::zeros({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast));
  libtorch::TorchModel model(last);
  dtrain::DistributedDataParallel ddp{model, group};
  const torch::Tensor factor = torch::arange(120.0).reshape({2, 3, 4, 5});
  const torch::Tensor loss = (last.only * factor).sum() * (group.rank() + 1);
  ddp.backward([&](dtrain::Ready ready) { model.backward(loss, ready); });
  require(are_close(last.only.grad(), factor * mean), "elements that lie in another order keep their places");
  require(last.only.grad().strides() == last.only.strides(), "a gradient lies as its value does");

  require_error("only has elements of type ComplexFloat", [] {
    One complex(torch::zeros({2}, torch::kComplexFloat));
    libtorch::TorchModel refused(complex);
  });
  require_error("only is not dense memory", [] {
    One gaps(torch::zeros({4, 4}).slice(1, 0, 2));
    libtorch::TorchModel refused(gaps);
  });
}

void check_moved(const Group&) {
  nn::Sequential network(nn::Linear(6, 5), nn::BatchNorm1d(5));
  libtorch::TorchModel model(*network);
  const torch::Tensor loss = loss_of(network, inputs_of(0, 0));
  network->to(torch::kFloat64);
  Sink sink(network->parameters()[0]);
  require_error("has moved since its TorchModel was made", [&] { model.backward(loss, dtrain::Ready(sink)); });
}

void check_end(const Group& group) {
  nn::Sequential network = two_layers();
  for (int wrapper = 0; wrapper < 2; ++wrapper) {
    libtorch::TorchModel model(*network);
    dtrain::DistributedDataParallel ddp{model, group};
    const torch::Tensor loss = loss_of(network, inputs_of(group.rank(), wrapper));
    ddp.backward([&](dtrain::Ready ready) { model.backward(loss, ready); });
  }
  require(!network->parameters()[0].grad().defined(), "no gradient is left in memory that is gone");
  loss_of(network, inputs_of(0, 0)).backward();
  require(network->parameters()[0].grad().defined(), "the network trains on alone");
}

void leave_out(const Group& group) {
  nn::Linear first(6, 2);
  nn::Sequential all(first, nn::Linear(6, 2));
  libtorch::TorchModel model(*all);
  dtrain::DistributedDataParallel ddp{model, group};
  const torch::Tensor loss = first->forward(inputs_of(0, 0)).mean();
  ddp.backward([&](dtrain::Ready ready) { model.backward(loss, ready); });
}

/// While rank 0 is in the middle of its own, so that `ready` throws there.
void throw_in_backward(const Group& group) {
  nn::Linear first(6, 5);
  nn::Linear second(5, 3);
  nn::Sequential network(first, second);
  libtorch::TorchModel model(*network);
  dtrain::DistributedDataParallel ddp{model, group, {.bucket_bytes = 0}};
  const torch::Tensor hidden = first->forward(inputs_of(0, 0));
  hidden.register_hook([&](const torch::Tensor&) {
    const auto deadline = dtrain::Deadline::after(std::chrono::seconds(30));
    if (group.rank() == 1) {
      group.store().get("rank 0 is there", deadline).wait();
      throw std::runtime_error("the second rank gives up");
    }
    group.store().set("rank 0 is there", "", deadline).wait();
    dtrain::group::GroupAccess::of(group).failure()->block_until_failed(deadline);
  });
  const torch::Tensor loss = second->forward(hidden).square().mean();
  ddp.backward([&](dtrain::Ready ready) {
    try {
      model.backward(loss, ready);
    } catch (const dtrain::JobFailed& error) {
      std::printf("autograd ended with: %s\n", error.what());
      std::fflush(stdout);
      throw;
    }
  });
}

struct Check {
  const char* name;
  std::function<void(const Group&)> run;
};

int probe(Group group, dtrain::Arguments arguments) {
  torch::set_num_threads(1);
  if (arguments.size() > 1) {
    std::string_view(arguments[1]) == "throw" ? throw_in_backward(group) : leave_out(group);
    return 0;
  }
  const std::vector<Check> checks{
      {"gradients that are kept", [](const Group& g) { check_training(g, false); }},
      {"gradients that were set to none", [](const Group& g) { check_training(g, true); }},
      {"order of announcements", check_order},
      {"buffers", check_buffers},
      {"unused parameters", check_unused},
      {"passes under no_sync", check_accumulation},
      {"tied and frozen parameters", check_tied},
      {"element types and layouts", check_types},
      {"memory that moved", check_moved},
      {"the end of the wrapper", check_end},
  };
  for (const Check& check : checks) {
    check.run(group);
    if (group.rank() == 0) std::printf("holds: %s\n", check.name);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, probe);
}
