// The smallest job: every rank adds its number to those of the others. The program starts its ranks itself, or another
// launcher starts it once for each rank.
//   hello_all_reduce --nproc-per-node=4
//   mpirun -n 4 hello_all_reduce

#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <span>

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::SharedMemory>;

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group) {
    double sum = group.rank();
    group.all_reduce(std::span(&sum, 1), dtrain::ReduceOp::sum);
    std::printf("rank %d of %d: sum %.0f\n", group.rank(), group.world_size(), sum);
    return 0;
  });
}
