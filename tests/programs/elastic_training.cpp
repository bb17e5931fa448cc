// A small elastic training for tests that kill its workers.
//   elastic_training --nproc-per-node=4 --min-ranks=2 --max-restarts=3 [WORD=VALUE ...]
// Each worker says on stdout, a line each: "worker W is process P"; "worker W is rank R of N from step S"; "commit S
// attempt A size N digest D" if asked for; "worker W finished as rank R of N: D after S steps". D is the digest of the
// weights, the same on all ranks.
//   steps=S              the steps of the job (100)
//   until=FILE           the job ends with the step before which FILE is there
//   pause=MS             how long a backward pass takes (5)
//   gloo                 reduces over Gloo in place of shared memory
//   log                  prints each commit
//   bound                the model's gradients lie in the wrapper's memory
//   thread               ready() is called by another thread, from a function that may not throw, after no_sync() steps
//   throw=S              worker 1 throws in the backward pass of step S, if it has not before
//   torn=S               worker 1 throws inside the commit of step S
//   swallow=S            worker 1 does so, catches it and returns, long after its wrapper has ended
//   call=S               worker 0 makes a call of dtrain inside the commit of step S
//   exit=CODE            worker 1 ends with exit code CODE in its first step
//   fail=S               worker 1 throws a JobFailed inside the commit of step S
//   eat=S                worker 1 writes 400 MB in step S
//   handle=SIGNAL        each worker handles that signal: "worker W got a signal"
//   leave=FILE           a worker of node N that can delete FILE.N ends with exit code 0 in that step
//   hang                 sleeps in place of train()
//   return=CODE          what the function returns
//   evaluate=S           each process computes in its own code before step S, once, for evaluation=MS (1500)
//   sharded=FILE         trains with a ShardedOptimizer, and has its checkpoint after each tenth step in FILE; all
//                        ranks have the same gradients, so that 1, 2 and 4 ranks get the same weights; only steps,
//                        pause and log are taken besides

#include <cstdint>
#include <map>
#include "programs/prelude.hpp"

#include "support/elastic_model.hpp"

namespace {

struct Options {
  explicit Options(dtrain::Arguments arguments) {
    for (std::size_t i = 1; i < arguments.size(); ++i) {
      const std::string word = arguments[i];
      const std::size_t equals = word.find('=');
      values[word.substr(0, equals)] = equals == std::string::npos ? "1" : word.substr(equals + 1);
    }
  }
  long number(const std::string& name, long otherwise = -1) const {
    const auto found = values.find(name);
    return found == values.end() ? otherwise : std::atol(found->second.c_str());
  }
  bool has(const std::string& name) const { return values.contains(name); }
  std::map<std::string, std::string> values;
};

using Model = support::ElasticModel;

/// The same with gradients in the wrapper's memory.
struct BoundModel : Model {
  void bind_gradient(std::size_t i, dtrain::TensorView where) { gradients[i] = reinterpret_cast<float*>(where.data); }
};

template <class M>
void backward(M& model, const dtrain::SampleShare& share, const Options& options, dtrain::Ready ready) {
  const auto compute = [&]() noexcept { model.backward(share.samples, share.weight, ready); };
  if (options.has("thread")) {
    std::thread(compute).join();
  } else {
    model.backward(share.samples, share.weight, ready);
  }
}

std::string file_of_node(const std::string& file) {
  const char* const node = std::getenv("DTRAIN_NODE_RANK");
  return file + "." + (node == nullptr ? "" : node);
}

void handle(int signal, int worker) {
  static char text[] = "worker ? got a signal\n";
  text[7] = static_cast<char>('0' + worker);
  static_cast<void>(
      std::signal(signal, [](int) { static_cast<void>(!::write(STDOUT_FILENO, text, sizeof text - 1)); }));
}

/// Whether the file of until= is there for any rank: then all end after the same step. Collective.
template <class Group>
bool is_told_to_end(Group& group, const Options& options) {
  const auto file = options.values.find("until");
  if (file == options.values.end()) return false;
  std::vector<float> is_there{::access(file->second.c_str(), F_OK) == 0 ? 1.0F : 0.0F};
  group.all_reduce(is_there, dtrain::ReduceOp::max);
  return is_there.front() > 0;
}

void say_commit(const Model& model, std::uint64_t step, std::uint64_t attempt, int ranks) {
  std::printf("commit %d attempt %d size %d digest %08x\n", static_cast<int>(step), static_cast<int>(attempt), ranks,
              model.digest());
}

struct SlowEnd {
  bool is_slow;
  ~SlowEnd() {
    if (is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
};

template <class M, class Policy>
int train(dtrain::Elastic<Policy> job, const Options& options) {
  const int worker = job.local_rank();
  const auto steps = static_cast<std::uint64_t>(options.number("steps", 100));
  const auto at = [&](const char* name) { return options.number(name) == static_cast<long>(job.step()); };
  if (options.has("handle")) handle(static_cast<int>(options.number("handle")), worker);
  M model;
  bool has_evaluated = false;
  job.keep(dtrain::parameter_values(model.parameters()));
  std::printf("worker %d is process %d\n", worker, static_cast<int>(::getpid()));
  return job.train([&](dtrain::ProcessGroup<Policy> group) {
    std::printf("worker %d is rank %d of %d from step %d\n", worker, group.rank(), group.world_size(),
                static_cast<int>(job.step()));
    const SlowEnd slow_end{options.has("swallow")};
    dtrain::DistributedDataParallel ddp{model, group};
    dtrain::DistributedSampler sampler{group, Model::samples};
    const std::uint64_t per_epoch = sampler.steps_per_epoch();
    while (job.step() < steps && !is_told_to_end(group, options)) {
      const auto shares = sampler.shares(job.step() / per_epoch);
      const dtrain::SampleShare share = shares[job.step() % per_epoch];
      if (at("evaluate") && !std::exchange(has_evaluated, true)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(options.number("evaluation", 1500)));
      }
      if (options.has("exit") && worker == 1) {
        std::_Exit(static_cast<int>(options.number("exit")));
      }
      if (worker == 1 && at("eat")) {
        std::fill_n(std::make_unique<volatile char[]>(400 << 20).get(), 400 << 20, '1');
      }
      if (options.has("leave") && ::unlink(file_of_node(options.values.at("leave")).c_str()) == 0) {
        std::_Exit(0);
      }
      if (options.has("thread")) {
        const auto apart = ddp.no_sync();
        ddp.backward([&](dtrain::Ready ready) { backward(model, share, options, ready); });
      }
      ddp.backward([&](dtrain::Ready ready) {
        std::this_thread::sleep_for(std::chrono::milliseconds(options.number("pause", 5)));
        if (worker == 1 && at("throw")) {
          throw std::runtime_error("a mistake of worker 1 at step " + std::to_string(job.step()));
        }
        backward(model, share, options, ready);
      });
      const auto write = [&] {
        model.update();
        if (worker == 1 && (at("torn") || at("swallow"))) {
          throw std::runtime_error("half a step");
        }
        if (worker == 1 && at("fail")) {
          throw dtrain::JobFailed({dtrain::CauseKind::lost, 0, "elsewhere", "a store's call was made"});
        }
        if (worker == 0 && at("call")) {
          group.barrier();
        }
      };
      if (options.has("swallow")) {
        try {
          job.commit(write);
        } catch (const std::runtime_error&) {
          return 0;
        }
      } else {
        job.commit(write);
      }
      if (options.has("log")) say_commit(model, job.step(), job.attempt(), group.world_size());
    }
    std::printf("worker %d finished as rank %d of %d: %08x after %d steps\n", worker, group.rank(), group.world_size(),
                model.digest(), static_cast<int>(job.step()));
    return static_cast<int>(options.number("return", 0));
  });
}

template <class Policy>
int train_sharded(dtrain::Elastic<Policy> job, const Options& options) {
  const int worker = job.local_rank();
  const std::string& file = options.values.at("sharded");
  const auto steps = static_cast<std::uint64_t>(options.number("steps", 100));
  Model model;
  std::int64_t step = 0;
  std::vector<dtrain::NamedTensor> tensors = dtrain::parameter_values(model.parameters());
  tensors.push_back({"step", dtrain::tensor_view(&step, {})});
  std::printf("worker %d is process %d\n", worker, static_cast<int>(::getpid()));
  return job.train([&](dtrain::ProcessGroup<Policy> group) {
    dtrain::DistributedDataParallel ddp{model, group};
    dtrain::ShardedOptimizer optimizer{ddp, dtrain::optimizers::Adam{.rate = 0.001F}};
    if (dtrain::load_checkpoint(group, file, tensors, optimizer)) {
      job.resume_at(static_cast<std::uint64_t>(step));
    } else {
      dtrain::save_checkpoint(group, file, tensors, optimizer);
    }
    std::printf("worker %d is rank %d of %d from step %d\n", worker, group.rank(), group.world_size(),
                static_cast<int>(job.step()));
    while (job.step() < steps) {
      ddp.backward(
          [&](dtrain::Ready ready) {
            std::this_thread::sleep_for(std::chrono::milliseconds(options.number("pause", 5)));
            const std::vector<std::size_t> of_step{(job.step() * 37) % 1000, 500, 700};
            model.backward(of_step, 1, ready);
          },
          optimizer);
      job.commit();
      if (options.has("log")) say_commit(model, job.step(), job.attempt(), group.world_size());
      step = static_cast<std::int64_t>(job.step());
      if (step % 10 == 0) dtrain::save_checkpoint(group, file, tensors, optimizer);
    }
    std::printf("worker %d finished as rank %d of %d: %08x after %d steps\n", worker, group.rank(), group.world_size(),
                model.digest(), static_cast<int>(job.step()));
  });
}

template <class Backend>
int run(int argc, char** argv) {
  using Policy = dtrain::Policy<dtrain::launch::PerNode, Backend>;
  return dtrain::run<Policy>(argc, argv, [](dtrain::Elastic<Policy> job, dtrain::Arguments arguments) {
    const Options options(arguments);
    if (options.has("hang")) std::this_thread::sleep_for(std::chrono::hours(1));
    if (options.has("sharded")) return train_sharded(job, options);
    return options.has("bound") ? train<BoundModel>(job, options) : train<Model>(job, options);
  });
}

}  // namespace

int main(int argc, char** argv) {
#if DTRAIN_WITH_GLOO
  if (Options({argv, static_cast<std::size_t>(argc)}).has("gloo")) {
    return run<dtrain::backend::Gloo>(argc, argv);
  }
#endif
  return run<dtrain::backend::SharedMemory>(argc, argv);
}
