// A small training for tests of jobs that are disturbed. Its gradients go through the job's store, so that its ranks
// can be on several (virtual) nodes, or with the word "shared" through shared memory.
//   store_training --nproc-per-node=2 [STEPS [MILLISECONDS_OF_A_STEP]] [shared] [plain] [phases] [WORD=VALUE ...]
// With "plain" it is a PerProcess program: somebody else starts its ranks.
// Each rank prints "rank R of N on node K of M: weight W after S steps". W is the same on all ranks, and can be said
// beforehand: each step takes 2^-10 times the mean of rank + 1 from it. With "phases" it says on stdout which phase it
// enters: "phase start of attempt 0", then joined, steady, leaving, left.
//   again=STEPS          the steps of an attempt after the first
//   straggle=MS          how much later than the others the last rank comes
//   linger=MS            how long each rank waits before it leaves, and again before it ends
//   grandchild=exec      each rank starts another program before it joins, one that does not heed SIGTERM
//   grandchild=fork      each rank forks once it has joined: a process that has all that the rank has open

#include <sys/prctl.h>

#include "programs/prelude.hpp"

#include "support/store_backend.hpp"

namespace {

using std::chrono::milliseconds;

template <class Launcher, class Backend>
using PolicyOf = dtrain::Policy<Launcher, Backend, dtrain::topology::Flat>;

struct Model {
  double value = 0;
  double gradient = 0;
  std::vector<dtrain::Parameter> parameters() {
    return {{"weight", dtrain::tensor_view(&value, {1}), dtrain::tensor_view(&gradient, {1})}};
  }
};

/// What the command line asks for; the launcher's flags mean nothing here.
struct Plan {
  int steps = 10;
  milliseconds step{0};
  bool shared = false;
  bool plain = false;
  bool phases = false;
  int again = 10;
  milliseconds straggle{0};
  milliseconds linger{0};
  std::string grandchild;
};

Plan plan_of(int argc, char** argv) {
  Plan plan;
  int numbers = 0;
  for (const std::string& argument : std::vector<std::string>(argv + 1, argv + argc)) {
    const std::size_t equals = argument.find('=');
    const std::string word = argument.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    const int number = std::atoi(value.c_str());
    if (word == "shared") {
      plan.shared = true;
    } else if (word == "plain") {
      plan.plain = true;
    } else if (word == "phases") {
      plan.phases = true;
    } else if (word == "again") {
      plan.again = number;
    } else if (word == "straggle") {
      plan.straggle = milliseconds(number);
    } else if (word == "linger") {
      plan.linger = milliseconds(number);
    } else if (word == "grandchild") {
      plan.grandchild = value;
    } else if (!word.empty() && word.find_first_not_of("0123456789") == std::string::npos) {
      ++numbers == 1 ? void(plan.steps = std::atoi(word.c_str()))
                     : void(plan.step = milliseconds(std::atoi(word.c_str())));
    }
  }
  return plan;
}

int variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? -1 : std::atoi(value);
}

void say(const Plan& plan, const char* phase) {
  if (plan.phases) {
    static_cast<void>(::dprintf(STDOUT_FILENO, "phase %s of attempt %d\n", phase, variable("DTRAIN_ATTEMPT")));
  }
}

void start_grandchild(const Plan& plan, const char* kind) {
  if (plan.grandchild == kind && ::fork() == 0) {
    std::signal(SIGTERM, SIG_IGN);
    ::prctl(PR_SET_NAME, "grandchild");
    if (plan.grandchild == "exec") {
      ::execlp("sleep", "sleep", "60", nullptr);
    }
    ::sleep(60);
    ::_exit(0);
  }
}

template <class Launcher, class Backend>
int train(int argc, char** argv, const Plan& plan) {
  using Policy = PolicyOf<Launcher, Backend>;
  return dtrain::run<Policy>(argc, argv, [&plan](dtrain::ProcessGroup<Policy> group) {
    start_grandchild(plan, "fork");
    say(plan, "joined");
    const int steps = variable("DTRAIN_ATTEMPT") > 0 ? plan.again : plan.steps;
    Model model;
    dtrain::DistributedDataParallel ddp{model, group};
    for (int step = 0; step < steps; ++step) {
      if (step == 3) {
        say(plan, "steady");
      }
      ddp.backward([&](dtrain::Ready ready) {
        std::this_thread::sleep_for(plan.step);
        model.gradient = group.rank() + 1;
        ready(0);
      });
      model.value -= model.gradient / 1024;
    }
    std::printf("rank %d of %d on node %d of %d: weight %.17g after %d steps\n", group.rank(), group.world_size(),
                group.node_rank(), group.node_count(), model.value, steps);
    say(plan, "leaving");
    std::this_thread::sleep_for(plan.linger);
    return 0;
  });
}

}  // namespace

int main(int argc, char** argv) {
  const Plan plan = plan_of(argc, argv);
  const bool is_worker = variable("DTRAIN_LAUNCHER_PROCESS") == ::getppid();
  if (is_worker) {
    start_grandchild(plan, "exec");
    say(plan, "start");
    if (variable("DTRAIN_RANK") == variable("DTRAIN_WORLD_SIZE") - 1) {
      std::this_thread::sleep_for(plan.straggle);
    }
  }
  using dtrain::launch::PerNode;
  using dtrain::launch::PerProcess;
  const int exit_code = plan.plain    ? train<PerProcess, support::StoreBackend>(argc, argv, plan)
                        : plan.shared ? train<PerNode, dtrain::backend::SharedMemory>(argc, argv, plan)
                                      : train<PerNode, support::StoreBackend>(argc, argv, plan);
  if (is_worker) {
    say(plan, "left");
    std::this_thread::sleep_for(plan.linger);
  }
  return exit_code;
}
