// One GPU for each rank, gradients over NCCL: ./fashion_mnist_cuda --nproc-per-node=auto
#include "cuda/mlp.hpp"
#include "train.hpp"

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::Nccl, dtrain::topology::Flat>;

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, fashion_mnist::train<Policy, fashion_mnist::CudaMlp>);
}
