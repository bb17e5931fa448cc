// The same training over MPI, on one host or many: mpirun -n 2 gpt2_mpi [--hook=bf16]
#include "training.hpp"

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::Mpi, dtrain::topology::Flat>;

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, gpt2::train<Policy>);
}
