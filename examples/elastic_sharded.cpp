// The line of elastic_fit.cpp, fitted with a ShardedOptimizer, whose state is lost with a rank: the others go on from
// the last checkpoint. Kill one, and look:
//   elastic_sharded --nproc-per-node=3 --min-ranks=1 --max-restarts=10 FILE
// FILE, and files beside it whose names begin so, are the checkpoint. A second call goes on from it.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;

/// y = slope * x + offset.
struct Line {
  std::array<float, 2> value{};
  std::array<float, 2> gradient{};

  std::vector<dtrain::Parameter> parameters() {
    return {{"line", dtrain::tensor_view(value), dtrain::tensor_view(gradient)}};
  }

  /// Mean squared error over the samples of y = 3x + 1, times the share's weight.
  void backward(const dtrain::SampleShare& share, dtrain::Ready ready) {
    gradient = {};
    for (const std::size_t sample : share.samples) {
      const float x = static_cast<float>(sample) / 1000.0F;
      const float error = value[0] * x + value[1] - (3 * x + 1);
      gradient[0] += share.weight * 2 * error * x / static_cast<float>(share.samples.size());
      gradient[1] += share.weight * 2 * error / static_cast<float>(share.samples.size());
    }
    ready(0);
  }
};

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::Elastic<Policy> job, dtrain::Arguments arguments) {
    if (arguments.size() != 2) {
      throw dtrain::Error(dtrain::Errc::usage, "elastic_sharded takes the name of a file for its checkpoint");
    }
    const std::string file = arguments[1];
    Line line;
    std::int64_t step = 0;
    std::vector<dtrain::NamedTensor> tensors = dtrain::parameter_values(line.parameters());
    tensors.push_back({"step", dtrain::tensor_view(&step, {})});
    return job.train([&](dtrain::ProcessGroup<Policy> group) {
      dtrain::DistributedDataParallel ddp{line, group};
      dtrain::ShardedOptimizer optimizer{ddp, dtrain::optimizers::Momentum{.rate = 0.02F}};
      if (dtrain::load_checkpoint(group, file, tensors, optimizer)) {  // weights, step and the optimizer's state
        job.resume_at(static_cast<std::uint64_t>(step));
      } else {
        dtrain::save_checkpoint(group, file, tensors, optimizer);  // a loss before the next checkpoint begins here
      }
      dtrain::DistributedSampler sampler{group, {.dataset_size = 1000, .global_batch = 100, .seed = 1}};
      const std::size_t per_epoch = sampler.steps_per_epoch();
      std::optional<dtrain::SampleShares> shares;
      while (job.step() < 100 * per_epoch) {
        const std::size_t k = job.step() % per_epoch;
        if (!shares || k == 0) shares = sampler.shares(job.step() / per_epoch);  // orders the samples of an epoch
        const dtrain::SampleShare share = (*shares)[k];
        std::this_thread::sleep_for(std::chrono::milliseconds(5));                           // a larger model
        ddp.backward([&](dtrain::Ready ready) { line.backward(share, ready); }, optimizer);  // the weights are new
        job.commit();
        step = static_cast<std::int64_t>(job.step());
        if (step % 50 == 0) dtrain::save_checkpoint(group, file, tensors, optimizer);
      }
      if (group.rank() == 0) {
        std::printf("y = %.3f x + %.3f, fitted on %d rank(s)\n", line.value[0], line.value[1], group.world_size());
      }
    });
  });
}
