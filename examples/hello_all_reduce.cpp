// The smallest job: every rank adds its number to those of the others. It starts its ranks itself, or is started once
// for each rank: two launchers, one body.
//   hello_all_reduce --nproc-per-node=4
//   mpirun -n 4 hello_all_reduce

#include <cstdio>
#include <cstdlib>
#include <dtrain/dtrain.hpp>
#include <dtrain/identity/resolve_identity.hpp>
#include <dtrain/identity/variables.hpp>
#include <span>
#include <string_view>

namespace {

template <class Launcher>
int hello(int argc, char** argv) {
  using Policy = dtrain::Policy<Launcher, dtrain::backend::SharedMemory, dtrain::topology::Flat>;
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group) {
    double sum = group.rank();
    group.all_reduce(std::span(&sum, 1), dtrain::ReduceOp::sum);
    std::printf("rank %d of %d: sum %.0f\n", group.rank(), group.world_size(), sum);
    return 0;
  });
}

/// Whether mpirun, srun, torchrun or a script has started this process as one rank of several.
bool is_one_of_several(std::span<char*> arguments) {
  for (const std::string_view argument : arguments) {
    if (argument.substr(0, 7) == "--nproc") {
      return false;  // it is to start ranks
    }
  }
  if (std::getenv("DTRAIN_LAUNCHER_PROCESS") != nullptr) {
    return false;  // launch::PerNode has started it, and knows it again
  }
  try {
    return dtrain::identity::process_identity(dtrain::identity::snapshot_environment()).world_size > 1;
  } catch (const dtrain::identity::IdentityError& error) {
    const bool is_of_a_node = error.reason() == dtrain::identity::IdentityErrc::node_level_env ||
                              (std::getenv("NODE_RANK") != nullptr && std::getenv("RANK") == nullptr);
    return !is_of_a_node;  // run says what is wrong
  }
}

}  // namespace

int main(int argc, char** argv) {
  return is_one_of_several({argv, static_cast<std::size_t>(argc)}) ? hello<dtrain::launch::PerProcess>(argc, argv)
                                                                   : hello<dtrain::launch::PerNode>(argc, argv);
}
