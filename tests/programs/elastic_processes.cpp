// A small elastic training whose processes the test starts itself, each with an index, for DTRAIN_WORLD_SIZE=MIN:MAX.
//   elastic_processes [WORD=VALUE ...]
// A process prints a line for each of: "index I begins"; "index I is rank R of N from step S"; "commit S size N";
// "index I finished as rank R of N: D after S steps". D is the digest of the weights, the same on all ranks. I is
// DTRAIN_TEST_INDEX.
//   steps=S     the steps of the job (100)
//   pause=MS    how long a backward pass takes (5)
//   init        joins by init_elastic() in place of run()
//   group       the program takes a group in place of an Elastic
//   stuck=S     calls nothing of dtrain any more in step S
//   throw=S     throws in step S
//   handler     has a handler for SIGTERM, which prints "handled"
//   wait        blocks SIGTERM, and prints "waited for SIGTERM" from a thread that waits for it
//   child       forks a process before train() that returns from the body, and prints "child returned" when it has
//   orphan      forks a process before train() that sleeps on when this one is killed, and prints "child P"
//   ended again       calls init_elastic() a second time fork        starts a process that sleeps, and prints "child P"
//   and, when the child ends, "child ended by signal N"

#include <signal.h>
#include <sys/wait.h>

#include <cstdint>
#include <exception>
#include "programs/prelude.hpp"

#include "support/elastic_model.hpp"

namespace {

#if DTRAIN_WITH_GLOO
using Backend = dtrain::backend::Gloo;
#else
using Backend = dtrain::backend::SharedMemory;
#endif
using Policy = dtrain::Policy<dtrain::launch::Any, Backend>;
using Group = dtrain::ProcessGroup<Policy>;
using support::ElasticModel;

long number(dtrain::Arguments arguments, const std::string& name, long otherwise) {
  for (const std::string word : arguments) {
    if (word.starts_with(name + "=")) return std::atol(word.c_str() + name.size() + 1);
    if (word == name) return 1;
  }
  return otherwise;
}

void watch_child() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::sleep(60);
    ::_exit(0);
  }
  std::printf("child %d\n", static_cast<int>(child));
  int status = 0;
  static_cast<void>(::waitpid(child, &status, 0));
  std::printf("child ended by signal %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

void wait_for_sigterm() {
  static sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  static_cast<void>(::pthread_sigmask(SIG_BLOCK, &set, nullptr));
  std::thread([] {
    int signal = 0;
    static_cast<void>(::sigwait(&set, &signal));
    std::printf("waited for SIGTERM\n");
  }).detach();
}

template <class Job>
int train(const Job& job, dtrain::Arguments arguments) {
  static_cast<void>(std::setvbuf(stdout, nullptr, _IOLBF, 0));
  const char* const index = std::getenv("DTRAIN_TEST_INDEX");
  const auto steps = static_cast<std::uint64_t>(number(arguments, "steps", 100));
  const std::chrono::milliseconds pause(number(arguments, "pause", 5));
  const long stuck = number(arguments, "stuck", -1);
  const long thrown = number(arguments, "throw", -1);
  if (number(arguments, "handler", 0) != 0) {
    static_cast<void>(std::signal(SIGTERM, [](int) { static_cast<void>(::write(STDOUT_FILENO, "handled\n", 8)); }));
  }
  if (number(arguments, "wait", 0) != 0) wait_for_sigterm();
  if (number(arguments, "child", 0) != 0) {
    const pid_t child = ::fork();
    if (child == 0) return 0;
    static_cast<void>(::waitpid(child, nullptr, 0));
    std::printf("child returned\n");
  }
  if (number(arguments, "orphan", 0) != 0) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::sleep(60);
      ::_exit(0);
    }
    std::printf("child %d\n", static_cast<int>(child));
  }
  ElasticModel model;
  job.keep(dtrain::parameter_values(model.parameters()));
  std::printf("index %s begins\n", index);
  return job.train([&](Group group) {
    std::printf("index %s is rank %d of %d from step %d\n", index, group.rank(), group.world_size(),
                static_cast<int>(job.step()));
    if (number(arguments, "fork", 0) != 0) std::thread(&watch_child).detach();
    dtrain::DistributedDataParallel ddp{model, group};
    dtrain::DistributedSampler sampler{group, ElasticModel::samples};
    const std::uint64_t per_epoch = sampler.steps_per_epoch();
    while (job.step() < steps) {
      const auto shares = sampler.shares(job.step() / per_epoch);
      const dtrain::SampleShare share = shares[job.step() % per_epoch];
      ddp.backward([&](dtrain::Ready ready) {
        std::this_thread::sleep_for(pause);
        if (thrown == static_cast<long>(job.step())) throw std::runtime_error("a mistake");
        model.backward(share.samples, share.weight, ready);
      });
      if (stuck == static_cast<long>(job.step())) {
        std::printf("index %s is stuck\n", index);
        std::this_thread::sleep_for(std::chrono::minutes(10));
      }
      job.commit([&] { model.update(); });
      if (job.step() % 5 == 0) std::printf("commit %d size %d\n", static_cast<int>(job.step()), group.world_size());
    }
    std::printf("index %s finished as rank %d of %d: %08x after %d steps\n", index, group.rank(), group.world_size(),
                model.digest(), static_cast<int>(job.step()));
  });
}

}  // namespace

int main(int argc, char** argv) {
  const dtrain::Arguments arguments(argv, static_cast<std::size_t>(argc));
  if (number(arguments, "group", 0) != 0) {
    return dtrain::run<Policy>(argc, argv, [](Group) {});
  }
  if (number(arguments, "init", 0) == 0) {
    return dtrain::run<Policy>(argc, argv,
                               [](dtrain::Elastic<Policy> job, dtrain::Arguments words) { return train(job, words); });
  }
  try {
    dtrain::launch::JoinOptions options;
    options.arguments.assign(argv, argv + argc);
    const dtrain::ElasticJob<Policy> job = dtrain::init_elastic<Policy>(options);
    const int exit_code = train(job, arguments);
    if (number(arguments, "again", 0) != 0) static_cast<void>(dtrain::init_elastic<Policy>(options));
    return exit_code;
  } catch (const dtrain::WorkerEnded& ended) {
    std::printf("ended with %d\n", ended.exit_code);
    return ended.exit_code;
  } catch (const dtrain::JobFailed& failed) {
    std::fprintf(stderr, "%s\n", failed.what());
    return dtrain::exit_code_job_failed;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return dtrain::exit_code_exception;
  }
}
