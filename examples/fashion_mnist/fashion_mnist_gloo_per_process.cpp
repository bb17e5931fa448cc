// The same training with messages over Gloo, each process started as one rank by torchrun, srun, Kubernetes or a shell.
#include "train.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Gloo, dtrain::topology::Flat>;

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, fashion_mnist::train<Policy>);
}
