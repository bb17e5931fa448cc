// A worker whose body forks, and whose child comes back from the body as if it were the rank.
//   fork_probe --nproc-per-node=2 [throw] [ddp]

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace {

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory, dtrain::topology::Flat>;

struct Model {
  float value = 1;
  float gradient = 0;
  std::vector<dtrain::Parameter> parameters() {
    return {{"weight", dtrain::tensor_view(&value, {1}), dtrain::tensor_view(&gradient, {1})}};
  }
};

int fork_and_go_on(const dtrain::ProcessGroup<Policy>& group, bool throws) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (throws) {
      throw std::runtime_error("the child's own trouble");
    }
    return 7;
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) {
    return 99;
  }
  group.barrier_blocking();
  std::printf("rank %d is well, its child ended with %d\n", group.rank(), WEXITSTATUS(status));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
    bool throws = false;
    bool wraps = false;
    for (const std::string_view argument : arguments) {
      throws = throws || argument == "throw";
      wraps = wraps || argument == "ddp";
    }
    group.barrier_blocking();
    if (!wraps) {
      return fork_and_go_on(group, throws);
    }
    Model model;
    dtrain::DistributedDataParallel ddp{model, group};
    ddp.backward([&](dtrain::Ready ready) { ready(0); });
    return fork_and_go_on(group, throws);
  });
}
