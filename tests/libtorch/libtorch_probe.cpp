// Holds dtrain::libtorch::DistributedDataParallel to what it says, on as many ranks as are started:
//   libtorch_probe --nproc-per-node=N           rank 0 prints "holds: ..." for each check
//   libtorch_probe --nproc-per-node=1 leave-out a parameter takes no part in the loss
//   libtorch_probe --nproc-per-node=2 throw     rank 1 throws in the middle of its backward pass
//   libtorch_probe --nproc-per-node=1 added     a parameter is added after the wrapping; converted: has another type;
//                                               reshaped: another shape; frozen, unfrozen: needs no gradient, or one
//   libtorch_probe --nproc-per-node=2 adversarial  a generator's pass goes through a wrapped discriminator
//   libtorch_probe --nproc-per-node=1 recomputed   a pass adds to a gradient twice; recomputed-static: in a static
//   graph libtorch_probe --nproc-per-node=1 no-group  a SyncBatchNorm that has no group is wrapped libtorch_probe
//   --nproc-per-node=1 static    the second step uses another parameter; dropped: does not use one libtorch_probe
//   --nproc-per-node=1 cleared   gradients are cleared after each pass under no_sync()
// Built where LibTorch is (examples/libtorch); integration.libtorch runs it.

#include "expectations.hpp"
#include "module_checks.hpp"
#include "step_checks.hpp"
#include "wrapper_checks.hpp"

namespace {

using namespace libtorch_probe;

void leave_out(const Group& group) {
  nn::Linear first(6, 2);
  nn::Sequential all(first, nn::Linear(6, 2));
  DistributedDataParallel ddp{all, group};
  ddp.backward(first->forward(inputs_of(0, 0)).mean());
}

void change_graph(const Group& group, std::string_view act) {
  nn::Linear first(6, 2);
  nn::Linear second(6, 2);
  DistributedDataParallel ddp{nn::Sequential(first, second),
                              group,
                              {.allow_unused_parameters = true},
                              BufferPolicy::rank0,
                              dtrain::libtorch::GraphPolicy::static_graph};
  for (const bool uses_second : {act == "dropped", act == "dropped", act != "dropped"}) {
    torch::Tensor output = first->forward(inputs_of(0, 0));
    if (uses_second) output = output + second->forward(inputs_of(0, 0));
    std::printf("step\n");
    ddp.backward(output.sum());
  }
}

/// A program that replaces the module's tensor after the tenth step, and trains on with its own.
void train_replaced(const Group& group) {
  const auto one = std::make_shared<One>(torch::ones({4}));
  DistributedDataParallel ddp{one, group, {.allow_unused_parameters = true}};
  torch::Tensor trained = one->only;
  for (int step = 0; step < 20; ++step) {
    if (step == 10) trained = trained.detach().clone().requires_grad_();
    ddp.backward((trained * (group.rank() + 1.0)).sum());
  }
}

/// While rank 0 is in the middle of its own, so that `ready` throws there.
void throw_in_backward(const Group& group) {
  nn::Linear first(6, 5);
  nn::Linear second(5, 3);
  DistributedDataParallel ddp{nn::Sequential(first, second), group, {.bucket_bytes = 0}};
  const torch::Tensor hidden = first->forward(inputs_of(0, 0));
  hidden.register_hook([&](const torch::Tensor&) {
    const auto deadline = dtrain::Deadline::after(std::chrono::seconds(60));
    if (group.rank() == 1) {
      group.store().get("rank 0 is there", deadline).wait();
      throw std::runtime_error("the second rank gives up");
    }
    group.store().set("rank 0 is there", "", deadline).wait();
    dtrain::group::GroupAccess::of(group).failure()->block_until_failed(deadline);
  });
  try {
    ddp.backward(loss_of(second->forward(hidden)));
  } catch (const dtrain::JobFailed& error) {
    std::printf("autograd ended with: %s\n", error.what());
    std::fflush(stdout);
    throw;
  }
}

void clear_held(const Group& group) {
  nn::Linear net(6, 2);
  DistributedDataParallel ddp{net, group};
  const dtrain::ddp::NoSync held = ddp.no_sync();
  for (int pass = 0; pass < 3; ++pass) {
    net->zero_grad(true);
    ddp.backward(ddp(inputs_of(0, 0)).sum());
  }
}

void change(const Group& group, std::string_view act) {
  nn::Linear net(6, 2);
  if (act == "unfrozen") net->bias.requires_grad_(false);
  DistributedDataParallel ddp{net, group};
  if (act == "added") net->register_parameter("late", torch::ones({1}));
  if (act == "converted") net->to(torch::kFloat64);
  if (act == "reshaped") net->bias.set_data(torch::zeros({1}));
  if (act == "frozen") net->bias.requires_grad_(false);
  if (act == "unfrozen") net->bias.requires_grad_(true);
  ddp.backward(ddp(inputs_of(0, 0).to(net->weight.dtype())).sum());
}

int probe(Group group, dtrain::Arguments arguments) {
  torch::set_num_threads(1);
  if (const std::string_view act = arguments.size() > 1 ? arguments[1] : ""; act == "throw") {
    throw_in_backward(group);
  } else if (act == "leave-out") {
    leave_out(group);
  } else if (act == "static" || act == "dropped") {
    change_graph(group, act);
  } else if (act == "adversarial") {
    check_other_wrapper(group);
  } else if (act == "recomputed" || act == "recomputed-static") {
    add_too_often(group, act == "recomputed-static");
  } else if (act == "replaced") {
    train_replaced(group);
  } else if (act == "cleared") {
    clear_held(group);
  } else if (act == "no-group") {
    dtrain::libtorch::SyncBatchNorm<Policy> norm(3);
    DistributedDataParallel ddp{norm, group};
  } else if (!act.empty()) {
    change(group, act);
  } else {
    const std::vector<std::pair<const char*, void (*)(const Group&)>> checks{
        {"kept gradients", [](const Group& g) { check_training(g, false); }},
        {"gradients set to none", [](const Group& g) { check_training(g, true); }},
        {"order of gradients", check_order},
        {"buffers", check_buffers},
        {"two forward passes", check_two_passes},
        {"unused parameters", check_unused},
        {"gradient hooks", check_hooks},
        {"passes under no_sync", check_accumulation},
        {"passes that are given up", check_discarded},
        {"tied and frozen parameters", check_tied},
        {"element types and layouts", check_types},
        {"parameters with gaps", check_gaps},
        {"parameters that change", check_growth},
        {"odd tensors", check_odd_tensors},
        {"sparse gradients", check_sparse},
        {"changes after wrapping", check_changes},
        {"the end of the wrapper", check_end},
        {"collectives of tensors", check_collectives},
        {"meanings of elements", check_element_meanings},
        {"tensors that a collective writes to", check_written_tensors},
        {"orders of elements", check_element_orders},
        {"batches of a DataLoader", check_loader},
        {"buffers of several modules", check_modules_buffers},
        {"norms of gradients", check_norms},
        {"recomputed layers", check_recomputed},
        {"uneven inputs", check_uneven},
        {"late samples", check_late_data},
        {"refused steps without data", check_refused_without_data},
        {"steps without data after passes that are held", check_held_without_data},
        {"a hundred wrappers", check_many_wrappers},
    };
    for (const auto& [name, check] : checks) {
      check(group);
      if (group.rank() == 0) std::printf("holds: %s\n", name);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, probe);
}
