#pragma once
/// @file
/// Checks of checkpoint_probe: optimizers' state and options in files.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>
#include <dtrain/libtorch.hpp>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "expectations.hpp"
#include "weights_checks.hpp"

namespace libtorch_probe {

/// Two layers in groups of their own, of which the second one takes part in no step, and a parameter of no module.
template <class Optimizer, class Options>
struct Grouped {
  Grouped(int seed, const Options& first, const Options& second)
      : net(two_layers(seed)),
        free(torch::full({2}, 1.0 * seed, torch::requires_grad())),
        optimizer(
            std::vector<torch::optim::OptimizerParamGroup>{
                {{net->parameters()[0], net->parameters()[0]}, std::make_unique<Options>(first)},
                {{net->parameters()[1], free}, std::make_unique<Options>(second)}},
            first) {}

  void run(int steps) {
    for (; steps > 0; --steps) {
      optimizer.zero_grad();
      (net->parameters()[0].square().sum() + free.square().sum()).backward();
      optimizer.step();
    }
  }

  nn::Sequential net;
  torch::Tensor free;
  Optimizer optimizer;
};

/// @param arrays of the state @param options of a group
template <class Optimizer, class Options>
void check_optimizer(const Group& group, const std::string& file, const Options& first, const Options& second,
                     const std::vector<std::string>& arrays, const std::vector<std::string>& options) {
  const auto list_of = [](Grouped<Optimizer, Options>& training) {
    return std::vector<dtrain::NamedTensor>{{"free", dtrain::libtorch::view_of(training.free.detach())}};
  };
  Grouped<Optimizer, Options> whole(1, first, second), resumed(2, second, Options(0.7));
  whole.run(2);
  dtrain::save_checkpoint(group, file, whole.net, whole.optimizer, list_of(whole));
  Names wanted{"0.weight", "0.bias", "2.weight", "2.bias", "dtrain.rng", "dtrain.list.free"};
  const bool has_all = std::is_same_v<Optimizer, torch::optim::Adagrad>;  // from its constructor
  for (const std::string name : {"0.weight", "0.bias", "(3)"}) {
    for (const std::string& option : options)
      wanted.insert("dtrain.optimizer.param_groups." + name + "." + option);
    for (const std::string& array : arrays) {
      if (has_all || name != "0.bias") wanted.insert("dtrain.optimizer.state." + name + "." + array);
    }
  }
  require_names(group, file, wanted, "state and options of an optimizer have PyTorch's names");
  resumed.run(1);
  require(dtrain::load_checkpoint(group, file, resumed.net, resumed.optimizer, list_of(resumed)), "there is a file");
  whole.run(2);
  resumed.run(2);
  require(
      torch::equal(whole.net->parameters()[0], resumed.net->parameters()[0]) && torch::equal(whole.free, resumed.free),
      "an optimizer goes on with the same bits");
}

/// What checkpoints do not know to have no further state.
struct Derived : torch::optim::SGD {
  using SGD::SGD;
};

inline void check_optimizers(const Group& group, const std::string& file) {
  using namespace torch::optim;
  const std::vector<std::string> adam{"lr", "betas", "eps", "weight_decay", "amsgrad"};
  check_optimizer<Adam>(group, file, AdamOptions(0.1).amsgrad(true), AdamOptions(0.2).betas({0.8, 0.9}).amsgrad(true),
                        {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, adam);
  check_optimizer<AdamW>(group, file, AdamWOptions(0.1), AdamWOptions(0.2).weight_decay(0.3),
                         {"step", "exp_avg", "exp_avg_sq"}, adam);
  check_optimizer<SGD>(group, file, SGDOptions(0.1).momentum(0.9).nesterov(true), SGDOptions(0.2).momentum(0.8),
                       {"momentum_buffer"}, {"lr", "momentum", "dampening", "weight_decay", "nesterov"});
  check_optimizer<RMSprop>(group, file, RMSpropOptions(0.1).momentum(0.9).centered(true),
                           RMSpropOptions(0.2).momentum(0.5).centered(true),
                           {"step", "square_avg", "momentum_buffer", "grad_avg"},
                           {"lr", "alpha", "eps", "weight_decay", "momentum", "centered"});
  check_optimizer<Adagrad>(group, file, AdagradOptions(0.1).initial_accumulator_value(2), AdagradOptions(0.2),
                           {"step", "sum"}, {"lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"});

  nn::Sequential net = two_layers(1);
  const std::vector<torch::Tensor> parameters = net->parameters();
  Adam before(parameters, AdamOptions(0.3));
  dtrain::save_checkpoint(group, file, net, before);
  Adam after(parameters, AdamOptions(0.1));
  loss_of(net->forward(inputs_of(0, 0))).backward();
  after.step();
  require(dtrain::load_checkpoint(group, file, net, after), "there is a file");
  require(
      after.state().empty() && after.defaults().get_lr() == 0.1 && after.param_groups()[0].options().get_lr() == 0.3,
      "state that the file does not have goes");

  const std::vector<torch::Tensor> first{parameters[0], parameters[1]}, rest{parameters[2], parameters[3]};
  SGD two({OptimizerParamGroup(first, std::make_unique<SGDOptions>(0.1)),
           OptimizerParamGroup(rest, std::make_unique<SGDOptions>(0.2))},
          SGDOptions(0.1));
  SGD one(parameters, 0.4);
  dtrain::save_checkpoint(group, file, net, two);
  require_error("has another lr for parameter '2.weight' than for the first one of its group; make the groups that",
                [&] { dtrain::load_checkpoint(group, file, net, one); });

  loss_of(net->forward(inputs_of(0, 0))).backward();
  before.step();
  auto& state = static_cast<AdamParamState&>(*before.state().begin()->second);
  state.step(-1);
  dtrain::save_checkpoint(group, file, net, before);
  require_error("has a negative number of updates of parameter '",
                [&] { dtrain::load_checkpoint(group, file, net, after); });

  Derived derived(parameters, SGDOptions(0.1).momentum(0.9)), fewer(first, SGDOptions(0.1));
  derived.step();
  dtrain::save_checkpoint(group, file, net, before, derived);
  const std::optional<Names> names = names_in(group, file);
  require(!names || names->count("dtrain.optimizer1.libtorch_probe::Derived") == 1,
          "another class is saved as bytes, by the number of the optimizer");
  state.step(1);
  dtrain::save_checkpoint(group, file, net, before, derived);
  require_error("the optimizer cannot take the state in the checkpoint",
                [&] { dtrain::load_checkpoint(group, file, net, after, fewer); });
  derived.param_groups()[0].options().set_lr(0.7);
  require(
      dtrain::load_checkpoint(group, file, net, after, derived) && derived.param_groups()[0].options().get_lr() == 0.1,
      "and loaded");
}

}  // namespace libtorch_probe
