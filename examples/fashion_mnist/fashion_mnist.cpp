// Starts its own ranks: ./fashion_mnist --nproc-per-node=2
#include "train.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory, dtrain::topology::Flat>;

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, fashion_mnist::train<Policy>);
}
