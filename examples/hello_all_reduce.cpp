// The smallest job: every rank adds its number to those of the others.
//   hello_all_reduce --nproc-per-node=4

#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <span>

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory, dtrain::topology::Flat>;

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group) {
    double sum = group.rank();
    group.all_reduce_blocking(std::span(&sum, 1), dtrain::ReduceOp::sum);
    std::printf("rank %d of %d: sum %.0f\n", group.rank(), group.world_size(), sum);
    return 0;
  });
}
