// Starts its own ranks: ./gpt2 --nproc-per-node=2 [--zero=2] [--hook=bf16]
#include "training.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory, dtrain::topology::Flat>;

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, gpt2::train<Policy>);
}
