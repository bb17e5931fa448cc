// A small training whose gradients go through the job's store, for ranks on several (virtual) nodes.
//   store_training --nproc-per-node=2 [STEPS [MILLISECONDS_OF_A_STEP]]
// Each rank prints "rank R of N on node K of M: weight W after S steps". W is the same on all ranks, and can be said
// beforehand: each step takes 2^-10 times the mean of rank + 1 from it.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <dtrain/dtrain.hpp>
#include <string>
#include <thread>
#include <vector>

#include "support/store_backend.hpp"

namespace {

using Policy = dtrain::Policy<dtrain::launch::PerNode, support::StoreBackend, dtrain::topology::Flat>;

struct Model {
  double value = 0;
  double gradient = 0;
  std::vector<dtrain::Parameter> parameters() {
    return {{"weight", dtrain::tensor_view(&value, {1}), dtrain::tensor_view(&gradient, {1})}};
  }
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
    const int steps = arguments.size() > 1 ? std::atoi(arguments[1]) : 10;
    const std::chrono::milliseconds pause(arguments.size() > 2 ? std::atoi(arguments[2]) : 0);
    Model model;
    dtrain::DistributedDataParallel ddp{model, group};
    for (int step = 0; step < steps; ++step) {
      ddp.backward([&](dtrain::Ready ready) {
        std::this_thread::sleep_for(pause);
        model.gradient = group.rank() + 1;
        ready(0);
      });
      model.value -= model.gradient / 1024;
    }
    std::printf("rank %d of %d on node %d of %d: weight %.17g after %d steps\n", group.rank(), group.world_size(),
                group.node_rank(), group.node_count(), model.value, steps);
    return 0;
  });
}
