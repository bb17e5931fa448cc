// The same training with messages over Gloo. Starts its own ranks: ./gpt2_gloo --nproc-per-node=2 [--hook=bf16]
#include "train_elastic.hpp"

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::Gloo, dtrain::topology::Flat>;

int main(int argc, char** argv) {
  if (shared::wants_elastic(argc, argv)) {
    return dtrain::run<Policy>(argc, argv, gpt2::train_elastic<Policy>);
  }
  return dtrain::run<Policy>(argc, argv, gpt2::train<Policy>);
}
