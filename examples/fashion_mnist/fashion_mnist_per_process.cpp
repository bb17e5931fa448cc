// The same training, each process started as one rank by torchrun, mpirun, srun or a shell: the environment says which.
#include "train.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory, dtrain::topology::Flat>;

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, fashion_mnist::train<Policy>);
}
