// The same training with messages over Gloo, for hosts without MPI or GPUs. Starts its own ranks, on several hosts too:
// ./fashion_mnist_gloo --nproc-per-node=2 --nnodes=2 --node-rank=0 --master-addr=host-a   (and --node-rank=1 on the
// other)
#include "train.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::Gloo, dtrain::topology::Flat>;

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, fashion_mnist::train<Policy>);
}
