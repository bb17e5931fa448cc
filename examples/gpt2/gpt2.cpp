// Starts its own ranks: ./gpt2 --nproc-per-node=2 [--zero=2] [--hook=bf16]. Or mpirun, srun or torchrun starts them.
#include "train_elastic.hpp"

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::SharedMemory, dtrain::topology::Flat>;

int main(int argc, char** argv) {
  if (shared::wants_elastic(argc, argv)) {
    return dtrain::run<Policy>(argc, argv, gpt2::train_elastic<Policy>);
  }
  return dtrain::run<Policy>(argc, argv, gpt2::train<Policy>);
}
