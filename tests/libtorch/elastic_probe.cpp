// An elastic training of a LibTorch module, for tests that kill its workers:
//   elastic_probe --nproc-per-node=N [--min-ranks=1 --max-restarts=3] OPTIMIZER[-not-kept] STEPS [RANKS [FILE]]
// Each worker says on stdout, a line each: "worker W is process P"; with RANKS, "holds at step 20" where the ranks of
// the first attempt wait in the middle of a step until the test kills one, and "holds at step 40" where those of a
// group of fewer than RANKS wait for the worker that comes later; at the end "finished: " and the elements of
// parameters, buffers and the optimizer's state. Rank 0 saves FILE after step 10, and every rank loads it at once,
// which gives the tensors other memory. Built where LibTorch is (examples/libtorch); integration.libtorch runs it.

#include <unistd.h>

#include <thread>

#include "expectations.hpp"

namespace {

using namespace libtorch_probe;
using Job = dtrain::Elastic<Policy>;

/// Statistics, which the forward pass writes, in a container and in a member.
struct NetImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return head(torch::tanh(norm(body->forward(x)))); }
  /// Without a bias before a normalisation: its gradient would be rounding alone.
  static nn::Linear linear(int inputs) { return nn::Linear(nn::LinearOptions(inputs, 8).bias(false)); }
  nn::Sequential body = register_module("body", nn::Sequential(linear(6), nn::BatchNorm1d(8), nn::Tanh(), linear(8)));
  dtrain::libtorch::SyncBatchNorm<Policy> norm =
      register_module("norm", dtrain::libtorch::SyncBatchNorm<Policy>(nn::BatchNormOptions(8).momentum(0.3)));
  nn::Linear head = register_module("head", nn::Linear(8, 2));
};
TORCH_MODULE(Net);

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, const Net& net) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net->body->parameters());
  groups.emplace_back([&] {
    std::vector<torch::Tensor> others = net->norm->parameters();
    for (const torch::Tensor& each : net->head->parameters())
      others.push_back(each);
    return others;
  }());
  if (name == "adam") return std::make_unique<torch::optim::Adam>(groups, torch::optim::AdamOptions(0.02));
  if (name == "adamw") {
    return std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(0.02).amsgrad(true));
  }
  if (name == "sgd") return std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.05).momentum(0.9));
  if (name == "rmsprop") {
    return std::make_unique<torch::optim::RMSprop>(
        groups, torch::optim::RMSpropOptions(0.005).momentum(0.5).centered(true).eps(1e-4));
  }
  if (name == "adagrad") return std::make_unique<torch::optim::Adagrad>(groups, torch::optim::AdagradOptions(0.05));
  throw std::runtime_error("give adam, adamw, sgd, rmsprop or adagrad");
}

torch::Tensor rows_of(std::span<const std::size_t> samples) {
  std::vector<torch::Tensor> rows;
  for (const std::size_t sample : samples)
    rows.push_back(torch::sin(torch::arange(6, torch::kFloat32) * (1 + static_cast<double>(sample))));
  return torch::stack(rows);
}

/// All that a worker that comes later receives, as text.
std::string text_of(const Job& job) {
  std::string text;
  const auto add = [&text](double value) { text += " " + std::to_string(value); };
  for (const dtrain::NamedTensor& each : job.tensors()) {
    for (std::size_t i = 0; i < each.value.shape.element_count(); ++i) {
      switch (each.value.dtype) {
        case dtrain::DType::f32: add(reinterpret_cast<const float*>(each.value.data)[i]); break;
        case dtrain::DType::f64: add(reinterpret_cast<const double*>(each.value.data)[i]); break;
        case dtrain::DType::i64:
          add(static_cast<double>(reinterpret_cast<const std::int64_t*>(each.value.data)[i]));
          break;
        default: add(reinterpret_cast<const std::int32_t*>(each.value.data)[i]);
      }
    }
  }
  return text;
}

void reload(const Group& group, const std::string& file, Net& net, torch::optim::Optimizer& optimizer) {
  if (group.rank() == 0) {
    torch::save(net, file + ".net");
    torch::save(optimizer, file + ".optimizer");
  }
  group.barrier();
  torch::load(net, file + ".net");
  torch::load(optimizer, file + ".optimizer");
  group.barrier();
}

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

/// In the middle of a step, in which the buffers are written. Collective: makes barriers until the attempt ends.
void hold_until_lost(const Job& job, const Group& group) {
  say("holds at step " + std::to_string(job.step()));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(100);
  while (std::chrono::steady_clock::now() < end) {
    group.barrier();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  throw std::runtime_error("nothing has ended the attempt that is held");
}

int train(const Job& job, dtrain::Arguments arguments) {
  if (arguments.size() < 3) throw std::runtime_error("give the optimizer and the number of steps");
  const auto steps = static_cast<std::uint64_t>(std::stoul(arguments[2]));
  const int ranks = arguments.size() > 3 ? std::stoi(arguments[3]) : 0;
  const std::string file = arguments.size() > 4 ? arguments[4] : "";
  torch::set_num_threads(1);
  torch::manual_seed(static_cast<std::uint64_t>(::getpid()));  // a worker that comes later begins with other values
  Net net;
  std::string name = arguments[1];
  const std::string end = "-not-kept";
  const bool keeps_optimizer = !name.ends_with(end);
  if (!keeps_optimizer) name.resize(name.size() - end.size());
  const auto optimizer = make_optimizer(name, net);
  torch::optim::StepLR scheduler(*optimizer, 7, 0.9);
  job.keep(keeps_optimizer ? dtrain::libtorch::training_state(net, *optimizer, scheduler)
                           : dtrain::libtorch::training_state(net));
  {  // what a program sets or loads before train()
    torch::NoGradGuard no_grad;
    net->norm->num_batches_tracked.fill_(1000);
    for (torch::optim::OptimizerParamGroup& group : optimizer->param_groups())
      group.options().set_lr(0.75 * group.options().get_lr());
    for (torch::Tensor& each : net->parameters())
      each.copy_(torch::cos(torch::arange(each.numel(), torch::kFloat32)).view(each.sizes()) * 0.5);
  }
  say("worker " + std::to_string(job.local_rank()) + " is process " + std::to_string(::getpid()));
  return job.train([&](Group group) {
    dtrain::libtorch::convert_sync_batchnorm(*net, group);
    DistributedDataParallel ddp{net, group};
    dtrain::DistributedSampler sampler{group, {.dataset_size = 96, .global_batch = 12, .seed = 5}};
    while (job.step() < steps) {
      if (job.step() % 10 == 5) {  // a step that gives up a pass, and updates nothing
        torch::Tensor sum = torch::zeros({});
        for (const torch::Tensor& each : net->parameters())
          sum = sum + each.sum();
        {
          const dtrain::ddp::NoSync held = ddp.no_sync();
          ddp.backward(sum);
        }
        ddp.discard_accumulated();
        job.commit([] {});
        continue;
      }
      const auto shares = sampler.shares(job.step() / sampler.steps_per_epoch());
      const dtrain::SampleShare share = shares[job.step() % sampler.steps_per_epoch()];
      optimizer->zero_grad();
      const torch::Tensor loss = ddp(rows_of(share.samples)).square().mean() * share.weight;
      const bool lacks_worker = job.step() == 40 && group.world_size() < ranks;
      if (lacks_worker || (ranks > 0 && job.step() == 20 && job.attempt() == 1)) hold_until_lost(job, group);
      ddp.backward(loss);
      job.commit([&] {
        optimizer->step();
        scheduler.step();
      });
      if (!file.empty() && job.step() == 10) reload(group, file, net, *optimizer);
    }
    say("finished:" + text_of(job));
  });
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, train);
}
