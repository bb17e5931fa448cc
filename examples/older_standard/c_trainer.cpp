// A trainer in C whose momentum lies in its gradients (trainer.c), on several ranks; also while workers are killed:
//   c_trainer --nproc-per-node=2
//   c_trainer --nproc-per-node=3 --min-ranks=1

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "trainer.h"

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;

/// The memory of both layers. An update is minus a gradient: the sign is all the same to an average.
static dtrain::ParameterList parameters(const trainer& net) {
  dtrain::ParameterList list;
  for (const layer& each : net.layers) {
    const std::size_t count = trainer_values(&each);
    list.push_back({"layer " + std::to_string(list.size()), dtrain::tensor_view(std::span(each.values, count)),
                    dtrain::tensor_view(std::span(each.updates, count))});
  }
  return list;
}

/// trainer_backward() with a step of dtrain around it. C lets no exception through: it waits until the call returns.
template <class Ddp>
static double backward(trainer& net, Ddp& ddp, const std::vector<float>& x) {
  struct Pass {
    dtrain::Step step;
    std::exception_ptr error{};
  } pass{ddp.begin()};
  const auto ready = [](void* context, std::size_t i) noexcept {
    auto& [step, error] = *static_cast<Pass*>(context);
    try {
      if (!error) step.ready(i);
    } catch (...) {
      error = std::current_exception();
    }
  };
  const double loss = trainer_backward(&net, x.data(), x.size(), ready, &pass);
  if (pass.error) std::rethrow_exception(pass.error);
  pass.step.finish();
  return loss;
}

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::Elastic<Policy> job) {
    constexpr std::size_t global_batch = 60;
    const std::unique_ptr<trainer, void (*)(trainer*)> net(trainer_make(16), trainer_free);
    if (!net) throw std::bad_alloc();
    const dtrain::ParameterList list = parameters(*net);
    float ranks_of_momentum = 1;  // an average over n ranks of sums over batch / n samples: its unit depends on n
    job.keep(dtrain::parameter_values(list));
    for (const dtrain::Parameter& each : list)
      job.keep_copy({{each.name + " updates", each.gradient}});  // the backward pass writes to it before the commit
    job.keep_copy({{"ranks of momentum", dtrain::tensor_view(&ranks_of_momentum, {})}});
    return job.train([&](dtrain::ProcessGroup<Policy> group) {
      const auto ranks = static_cast<float>(group.world_size());
      for (const layer& each : net->layers) {
        for (float& update : std::span(each.updates, trainer_values(&each)))
          update *= ranks_of_momentum / ranks;
      }
      ranks_of_momentum = ranks;
      dtrain::DistributedDataParallel ddp{list, group};
      const dtrain::DistributedSampler sampler{group, {.dataset_size = 960, .global_batch = global_batch, .seed = 1}};
      const std::size_t per_epoch = sampler.steps_per_epoch();
      std::optional<dtrain::SampleShares> shares;
      while (job.step() < 40 * per_epoch) {
        const std::size_t k = job.step() % per_epoch;
        if (!shares || k == 0) shares = sampler.shares(job.step() / per_epoch);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // a larger model
        std::vector<float> x;
        for (const std::size_t sample : (*shares)[k].samples)
          x.push_back(static_cast<float>(sample) / 480 - 1);
        const double loss = group.all_reduce(backward(*net, ddp, x), dtrain::ReduceOp::sum) / global_batch;
        job.commit([&] { trainer_update(net.get(), 0.05F, 0.9F, global_batch / ranks); });
        if (group.rank() == 0 && job.step() % (10 * per_epoch) == 0) {
          std::printf("step %zu on %d rank(s): mean squared error %.7f\n", job.step(), group.world_size(), loss);
          std::fflush(stdout);
        }
      }
    });
  });
}
