// A worker whose body forks between the steps of its training, and whose child comes back from the body as if it were
// the rank, or does what else it is told.
//   fork_probe --nproc-per-node=2 [in-step | unwrapped] [return | throw | write | call]

#include <sys/wait.h>

#include <array>
#include <string_view>
#include "programs/prelude.hpp"

namespace {

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory, dtrain::topology::Flat>;

/// Its gradients live where dtrain puts them.
struct Model {
  std::array<float, 2> values{1, 1};
  std::array<float, 2> own_gradients{};
  std::array<float*, 2> gradients{&own_gradients[0], &own_gradients[1]};

  std::vector<dtrain::Parameter> parameters() {
    return {{"weight", dtrain::tensor_view(&values[0], {1}), dtrain::tensor_view(gradients[0], {1})},
            {"bias", dtrain::tensor_view(&values[1], {1}), dtrain::tensor_view(gradients[1], {1})}};
  }
  void bind_gradient(std::size_t i, const dtrain::TensorView& view) { gradients[i] = view.as<float>().data(); }
};

/// In the child: what it is told to; true where it is to come back from the body. In the rank: says how the child
/// ended.
bool fork_once(const std::string& what, const dtrain::ProcessGroup<Policy>& group, const Model& model) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (what == "throw") throw std::runtime_error("the child's own trouble");
    if (what == "write") {
      ::alarm(30);
      *model.gradients[0] = 1000;
      *model.gradients[1] = 1000;
      ::_exit(0);
    }
    if (what == "call") {
      ::alarm(30);
      try {
        group.barrier();
      } catch (const dtrain::Error& error) {
        std::printf("the child of rank %d: %s\n", group.rank(), error.what());
        std::fflush(stdout);
      }
      ::_exit(7);
    }
    return true;
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) throw std::runtime_error("the fork went wrong");
  if (WIFSIGNALED(status)) {
    std::printf("rank %d's child was ended by signal %d\n", group.rank(), WTERMSIG(status));
  } else {
    std::printf("rank %d's child ended with %d\n", group.rank(), WEXITSTATUS(status));
  }
  return false;
}

/// Without a wrapper: a barrier for each step.
int pass_barriers(const dtrain::ProcessGroup<Policy>& group, const std::string& what) {
  for (int step = 0; step < 10; ++step) {
    group.barrier();
    if (step == 3 && fork_once(what, group, Model())) return 7;
  }
  std::printf("rank %d took 10 steps\n", group.rank());
  return 0;
}

int train(const dtrain::ProcessGroup<Policy>& group, const std::string& what, bool in_step) {
  Model model;
  dtrain::DistributedDataParallel ddp{model, group};
  for (int step = 0; step < 10; ++step) {
    if (step == 3 && !in_step && fork_once(what, group, model)) return 7;
    dtrain::Step open = ddp.begin();
    for (std::size_t i = 0; i < 2; ++i)
      *model.gradients[i] = static_cast<float>(group.rank() + 1 + step) * static_cast<float>(i + 1);
    if (step == 3 && in_step && fork_once(what, group, model)) return 7;
    open.ready(0);
    open.ready(1);
    open.finish();
    const float mean = 1.5F + static_cast<float>(step);
    if (*model.gradients[0] != mean || *model.gradients[1] != 2 * mean) {
      std::printf("rank %d has %g and %g after step %d\n", group.rank(), static_cast<double>(*model.gradients[0]),
                  static_cast<double>(*model.gradients[1]), step);
      return 3;
    }
  }
  std::printf("rank %d took 10 steps\n", group.rank());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
    std::string what = "return";
    bool in_step = false;
    bool wraps = true;
    for (const std::string_view argument : arguments.subspan(1)) {
      if (argument == "in-step") {
        in_step = true;
      } else if (argument == "unwrapped") {
        wraps = false;
      } else {
        what = argument;
      }
    }
    return wraps ? train(group, what, in_step) : pass_barriers(group, what);
  });
}
