// Holds dtrain::libtorch::ShardedOptimizer to what it says, on as many ranks as are started:
//   sharded_probe --nproc-per-node=N FILE        rank 0 prints "holds: ..." for each check; leaves the checkpoints FILE
//                                                and "FILE in Double"
//   sharded_probe --nproc-per-node=N FILE load   goes on from both, which any number of ranks has saved
//   sharded_probe --nproc-per-node=N FILE strided   a value gets other strides; tied: two share memory; unfrozen: a
//                                                   parameter needs a gradient now; loaded: of another shape
// Built where LibTorch is (examples/libtorch); integration.libtorch runs it.

#include "expectations.hpp"
#include "moved_checks.hpp"
#include "sharded_checks.hpp"

namespace {

using namespace libtorch_probe;

/// Every rank trains on the same inputs: the result depends little on the number of ranks.
struct Training {
  explicit Training(const Group& all, double rate)
      : group(all),
        net(two_layers(5)),
        ddp(net, group),
        described(net->parameters(), torch::optim::AdamWOptions(rate).weight_decay(0.1)),
        optimizer(ddp, described),
        position(dtrain::DistributedSampler{group, {.dataset_size = 60, .global_batch = 12}}) {}

  void run(int steps) {
    for (; steps > 0; --steps, ++position.step)
      ddp.backward(loss_of(ddp(inputs_of(0, static_cast<int>(position.step)))), optimizer);
  }

  Group group;
  nn::Sequential net;
  DistributedDataParallel<nn::Sequential, Policy> ddp;
  torch::optim::AdamW described;
  decltype(ShardedOptimizer{ddp, described}) optimizer;
  dtrain::libtorch::SamplerPosition position;
};

void check_resumed(const Group& group, const std::string& file, bool same_ranks) {
  Training whole(group, 0.02);
  whole.run(3);
  if (same_ranks) dtrain::save_checkpoint(group, file, whole.net, whole.optimizer, whole.position);
  whole.run(3);
  Training resumed(group, 0.5);
  require(dtrain::load_checkpoint(group, file, resumed.net, resumed.optimizer, resumed.position), "there is a file");
  require(resumed.position.step == 3 && resumed.optimizer.updates()[0] == 3, "it goes on after the third step");
  resumed.run(3);
  require_near(resumed.net, whole.net, "is that of the undisturbed training");
  for (std::size_t i = 0; same_ranks && i < whole.net->parameters().size(); ++i)
    require(torch::equal(resumed.net->parameters()[i], whole.net->parameters()[i]), "it has the same bits");
}

/// The optimizer itself goes on from a sharded one's file, and a sharded one not from its.
void check_unsharded(const Group& group, const std::string& file) {
  Training whole(group, 0.02);
  whole.run(6);
  nn::Sequential net = two_layers(8);
  DistributedDataParallel ddp{net, group};
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.5));
  dtrain::libtorch::SamplerPosition position = whole.position;
  require(dtrain::load_checkpoint(group, file, net, adamw, position), "there is a file");
  for (; position.step < 6; ++position.step) {
    adamw.zero_grad();
    ddp.backward(loss_of(ddp(inputs_of(0, static_cast<int>(position.step)))));
    adamw.step();
  }
  require_near(net, whole.net, "is that of the sharded training");
  dtrain::save_checkpoint(group, file + ".whole", net, adamw, position);
  require_error("was saved without a ShardedOptimizer",
                [&] { dtrain::load_checkpoint(group, file + ".whole", whole.net, whole.optimizer, whole.position); });
}

/// A sharded optimizer of one network's parameters, beside another optimizer with more state, and parameters that were
/// never updated.
template <class Optimizer, class Options>
void check_one_of_two(const Group& group, const std::string& file, const Options& options) {
  nn::Sequential a = two_layers(1), b = two_layers(2), idle = two_layers(3);
  const dtrain::libtorch::Modules modules{a.ptr(), b.ptr(), idle.ptr()};
  DistributedDataParallel ddp{modules, group, {.allow_unused_parameters = true}};
  std::vector<torch::Tensor> parameters = a->parameters();
  for (const torch::Tensor& each : idle->parameters())
    parameters.push_back(each);
  Optimizer described(parameters, options);
  torch::optim::AdamW beside(b->parameters(), torch::optim::AdamWOptions(0.1));
  ShardedOptimizer optimizer{ddp, described};
  ddp.backward(loss_of(a->forward(inputs_of(0, 0))), optimizer);
  dtrain::save_checkpoint(group, file, modules, optimizer, beside);
  Optimizer plain(parameters, options);
  require(dtrain::load_checkpoint(group, file, modules, plain, beside), "there is a file");
  const torch::Tensor before = a->parameters()[0].detach().clone();
  for (torch::Tensor& each : parameters)
    each.mutable_grad() = torch::zeros_like(each);
  plain.step();  // by the loaded state alone
  require(torch::equal(before, a->parameters()[0]) == std::is_same_v<Optimizer, torch::optim::Adagrad>,
          "the optimizer that was sharded has its state");
}

/// What a step with a sharded optimizer refuses.
void change(const Group& group, std::string_view act) {
  nn::Sequential net = two_layers(0);
  std::vector<torch::Tensor> parameters = net->parameters();
  if (act == "unfrozen") parameters[1].requires_grad_(false);
  DistributedDataParallel ddp{net, group};
  torch::optim::SGD described(net->parameters(), 0.5);
  ShardedOptimizer optimizer{ddp, described};
  if (act == "unfrozen") parameters[1].requires_grad_(true);
  if (act == "strided") parameters[0].set_data(torch::zeros({6, 5}).t());
  if (act == "tied") parameters[1].set_data(parameters[0].data().flatten().narrow(0, 3, 5));
  if (act == "loaded") parameters[3].set_data(torch::zeros({1}));
  ddp.backward(loss_of(ddp(inputs_of(0, 0))), optimizer);
}

int probe(Group group, dtrain::Arguments arguments) {
  if (arguments.size() < 2) throw std::runtime_error("give the file to write");
  const std::string file(arguments[1]);
  torch::set_num_threads(1);
  if (arguments.size() > 2) {
    if (arguments[2] != std::string_view("load")) {
      change(group, arguments[2]);
      return 0;
    }
    check_resumed(group, file, false);
    torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
    check_resumed(group, file + " in Double", false);
    return 0;
  }
  using namespace torch::optim;
  using Checks = std::vector<std::pair<const char*, void (*)(const Group&, const std::string&)>>;
  const auto run = [&](const Checks& checks, const std::string& kind) {
    for (const auto& [name, check] : checks) {
      check(group, file + kind);
      if (group.rank() == 0) std::printf("holds: %s%s\n", name, kind.c_str());
    }
  };
  const Checks of_each_type{
      {"AdamW's updates",
       [](const Group& g, const std::string&) {
         check_updates<AdamW>(g, "AdamW", AdamWOptions(0.02).weight_decay(0.1));
       }},
      {"Adam's updates",
       [](const Group& g, const std::string&) {
         check_updates<Adam>(g, "Adam", AdamOptions(0.02).weight_decay(0.1).betas({0.8, 0.99}));
       }},
      {"SGD's updates",
       [](const Group& g, const std::string&) {
         check_updates<SGD>(g, "SGD", SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.1));
       }},
      {"RMSprop's updates",
       [](const Group& g, const std::string&) {
         check_updates<RMSprop>(g, "RMSprop", RMSpropOptions(0.002).momentum(0.9).weight_decay(0.1).eps(1e-4));
       }},
      {"Adagrad's updates",
       [](const Group& g, const std::string&) {
         check_updates<Adagrad>(g, "Adagrad",
                                AdagradOptions(0.05).lr_decay(0.1).weight_decay(0.1).initial_accumulator_value(0.5));
       }},
      {"unused parameters", [](const Group& g, const std::string&) { check_unused_updates(g); }},
      {"refused updates", [](const Group& g, const std::string&) { check_refused_update(g); }},
      {"divided gradients", [](const Group& g, const std::string&) { check_divided_gradients(g); }},
      {"memory of divided gradients", [](const Group& g, const std::string&) { check_divided_memory(g); }},
      {"layouts of divided gradients", [](const Group& g, const std::string&) { check_divided_layouts(g); }},
      {"a checkpoint", [](const Group& g, const std::string& path) { check_resumed(g, path, true); }},
      {"a checkpoint in an optimizer that is not sharded", check_unsharded},
      {"a checkpoint in one of two optimizers",
       [](const Group& g, const std::string& path) {
         check_one_of_two<SGD>(g, path + ".sgd", SGDOptions(0.1).momentum(0.9));
         check_one_of_two<Adagrad>(g, path + ".adagrad", AdagradOptions(0.1));
       }},
  };
  run(
      {
          {"versions of parameters", [](const Group& g, const std::string&) { check_version(g); }},
          {"shares of the state", [](const Group& g, const std::string&) { check_shares(g); }},
          {"refused optimizers", [](const Group& g, const std::string&) { check_refused_optimizers(g); }},
          {"values that moved", [](const Group& g, const std::string&) { check_moved_values(g); }},
          {"values that were swapped", [](const Group& g, const std::string&) { check_swapped_values(g); }},
          {"averages of values that moved", [](const Group& g, const std::string&) { check_moved_local(g); }},
          {"bindings of values that moved", [](const Group& g, const std::string&) { check_moved_bindings(g); }},
          {"a checkpoint of values that moved", check_saved_after_move},
          {"refused mixtures of types", [](const Group& g, const std::string&) { check_mixed_types(g); }},
      },
      "");
  run(of_each_type, "");  // after what writes other checkpoints to the file
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  run(of_each_type, " in Double");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, probe);
}
