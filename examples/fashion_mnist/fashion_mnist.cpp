// Starts its own ranks, ./fashion_mnist --nproc-per-node=2 [--precision=bf16], or is started once for each rank by
// mpirun, srun, torchrun or a shell.
#include "half_mlp.hpp"
#include "train_elastic.hpp"

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::SharedMemory, dtrain::topology::Flat>;

int main(int argc, char** argv) {
  if (shared::wants_elastic(argc, argv)) {
    return dtrain::run<Policy>(argc, argv, fashion_mnist::train_elastic<Policy>);
  }
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
    const std::string precision = fashion_mnist::parse_options(arguments).precision;
    if (precision == "bf16")
      return fashion_mnist::train<Policy, fashion_mnist::HalfMlp<dtrain::bfloat16>>(group, arguments);
    if (precision == "f16")
      return fashion_mnist::train<Policy, fashion_mnist::HalfMlp<dtrain::float16>>(group, arguments);
    return fashion_mnist::train<Policy>(group, arguments);
  });
}
