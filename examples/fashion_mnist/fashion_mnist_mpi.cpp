// The same training over MPI, on one host or many: mpirun -n 4 fashion_mnist_mpi
#include "train.hpp"

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::Mpi, dtrain::topology::Flat>;

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, fashion_mnist::train<Policy>);
}
