// The same training with messages over Gloo, for hosts without MPI or GPUs. Starts its own ranks, on several hosts too:
// ./fashion_mnist_gloo --nproc-per-node=2 --nnodes=2 --node-rank=0 --master-addr=host-a   (and --node-rank=1 on the
// other). Or torchrun, srun, Kubernetes or a shell starts each process as one rank.
#include "train_elastic.hpp"

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::Gloo, dtrain::topology::Flat>;

int main(int argc, char** argv) {
  if (shared::wants_elastic(argc, argv)) {
    return dtrain::run<Policy>(argc, argv, fashion_mnist::train_elastic<Policy>);
  }
  return dtrain::run<Policy>(argc, argv, fashion_mnist::train<Policy>);
}
