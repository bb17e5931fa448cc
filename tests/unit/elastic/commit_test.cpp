#include <unistd.h>

#include <cstdio>
#include <span>

#include "unit/elastic/prelude.hpp"

namespace {

struct Model {
  std::vector<float> weights = std::vector<float>(300, 1);
  std::vector<float> gradients = std::vector<float>(300);

  std::vector<dtrain::Parameter> parameters() {
    return {{"w", dtrain::tensor_view(weights), dtrain::tensor_view(gradients)}};
  }
};

/// Objects of a program whose function calls commit().
struct Training {
  Training(const dtrain::Elastic<Policy>& elastic, const Group& with)
      : job(elastic), group(with), pending(dtrain::save_checkpoint_async(group, path, values)) {
    ddp.backward(pass);
  }
  ~Training() {
    std::remove(path.c_str());
    std::remove((path + ".2").c_str());
  }

  const dtrain::Elastic<Policy>& job;
  Group group;
  const std::string path = "/tmp/dtrain_commit_" + std::to_string(::getpid());
  const std::function<void(dtrain::Ready)> pass = [](dtrain::Ready ready) { ready(0); };
  Model model;
  Model sharded_model;
  Model third_model;
  std::vector<dtrain::NamedTensor> values = dtrain::parameter_values(model.parameters());
  std::vector<float> numbers = std::vector<float>(4);
  dtrain::DistributedDataParallel<Model, Policy> ddp{model, group};
  dtrain::DistributedDataParallel<Model, Policy> sharded{sharded_model, group};
  decltype(sharded)::Sharded<dtrain::optimizers::Sgd> optimizer{sharded, dtrain::optimizers::Sgd{}};
  dtrain::UnevenInputs<Group> inputs{group};
  dtrain::Work<Policy> work = group.all_reduce(std::span<float>(numbers), dtrain::ReduceOp::sum, group.stream());
  dtrain::BackgroundTask<std::string> task = group.spawn(
      [store = group.store()]() -> dtrain::Task<std::string> { co_return co_await store.get("nobody sets it"); });
  dtrain::PendingCheckpoint pending;
};

struct Call {
  std::string name;
  std::function<void(Training&)> make;
};

const std::vector<Call> refused_calls{
    {"all_reduce", [](Training& of) { of.group.all_reduce(of.numbers); }},
    {"all_reduce on a stream",
     [](Training& of) {
       of.group.all_reduce(std::span<float>(of.numbers), dtrain::ReduceOp::sum, of.group.stream()).wait();
     }},
    {"Work::wait", [](Training& of) { of.work.wait(); }},
    {"barrier", [](Training& of) { of.group.barrier(); }},
    {"split", [](Training& of) { static_cast<void>(of.group.split(0)); }},
    {"leave", [](Training& of) { of.group.leave(); }},
    {"store.set", [](Training& of) { of.group.store().set("a", "b").wait(); }},
    {"store.get", [](Training& of) { static_cast<void>(of.group.store().get("a").wait()); }},
    {"store.try_get", [](Training& of) { static_cast<void>(of.group.store().try_get("a").wait()); }},
    {"store.barrier", [](Training& of) { of.group.store().barrier("b").wait(); }},
    {"run",
     [](Training& of) {
       static_cast<void>(of.group.run(
           [store = of.group.store()]() -> dtrain::Task<std::string> { co_return co_await store.get("a"); }));
     }},
    {"spawn",
     [](Training& of) {
       auto started = of.group.spawn(
           [store = of.group.store()]() -> dtrain::Task<std::string> { co_return co_await store.get("a"); });
     }},
    {"BackgroundTask::wait", [](Training& of) { of.task.wait(dtrain::Deadline::after(20s)); }},
    {"backward", [](Training& of) { of.ddp.backward(of.pass); }},
    {"begin", [](Training& of) { of.ddp.begin().finish(); }},
    {"backward with an optimizer", [](Training& of) { of.sharded.backward(of.pass, of.optimizer); }},
    {"step_without_data", [](Training& of) { of.ddp.step_without_data(); }},
    {"ShardedOptimizer::wait", [](Training& of) { of.optimizer.wait(); }},
    {"compare_values", [](Training& of) { of.ddp.compare_values(); }},
    {"summary", [](Training& of) { static_cast<void>(of.ddp.summary()); }},
    {"slowest_rank", [](Training& of) { static_cast<void>(of.ddp.slowest_rank()); }},
    {"save_checkpoint", [](Training& of) { dtrain::save_checkpoint(of.group, of.path, of.values); }},
    {"save_checkpoint_async",
     [](Training& of) { auto another = dtrain::save_checkpoint_async(of.group, of.path + ".2", of.values); }},
    {"save_checkpoint_async of an optimizer",
     [](Training& of) {
       auto another = dtrain::save_checkpoint_async(of.group, of.path + ".2", of.values, of.optimizer);
     }},
    {"PendingCheckpoint::wait", [](Training& of) { of.pending.wait(); }},
    {"load_checkpoint", [](Training& of) { dtrain::load_checkpoint(of.group, "/nowhere", of.values); }},
    {"write_timeline", [](Training& of) { dtrain::write_timeline(of.group, of.path + ".2", of.ddp.records()); }},
    {"wrapping",
     [](Training& of) {
       dtrain::DistributedDataParallel another{of.third_model, of.group};
     }},
    {"UnevenInputs::begin_step", [](Training& of) { of.inputs.begin_step(); }},
};

}  // namespace

TEST_CASE("each call of dtrain that sends, waits or starts work is refused in the function of commit()") {
  for (const Call& call : refused_calls) {
    CAPTURE(call.name);
    CHECK_CONTAINS(thrown_alone([&call](auto& job, Group group) {
                     Training training(job, group);
                     job.commit([&] { call.make(training); });
                   }),
                   "a call of dtrain was made in commit(), where the state is half written");
  }
}

TEST_CASE("calls of the job in the function of commit() are refused, with what to do") {
  const auto thrown_in_commit = [](auto call) {
    return thrown_alone([call](auto& job, Group) { job.commit([&] { call(job); }); });
  };
  CHECK(thrown_in_commit([](auto& job) { job.commit(); }) ==
        "commit() was called inside commit(); call it before or after that");
  CHECK(thrown_in_commit([](auto& job) { job.commit([] {}); }) ==
        "commit() was called inside commit(); call it before or after that");
  CHECK(thrown_in_commit([](auto& job) { job.resume_at(7); }) ==
        "resume_at() was called inside commit(); call it before or after that");
}

TEST_CASE("what computes on this rank alone may stand in commit()") {
  CHECK(thrown_alone([](auto& job, Group group) {
          Model model;
          dtrain::DistributedDataParallel ddp{model, group};
          dtrain::LossScaler scaler;
          dtrain::MasterWeights master{model};
          const dtrain::DistributedSampler sampler{group, {.dataset_size = 10, .global_batch = 2}};
          for (int i = 0; i < 2; ++i) {
            const auto pass = [](dtrain::Ready ready) { ready(0); };
            CHECK(ddp.backward(pass, {.clip_norm = 1.0, .scaler = &scaler, .master = i == 0 ? &master : nullptr}));
            job.commit([&] {
              if (i == 1) ddp.clip_gradients(1.0);
              if (i == 1) ddp.scale_gradients(0.5);
              CHECK(ddp.gradient_norm().finite);
              CHECK(scaler.scale() == 65536);
              master.store();
              CHECK(sampler.shares(job.step()).size() == 5);
              CHECK(ddp.statistics().steps == job.step() + 1);
              CHECK(ddp.records().size() == 6 * (job.step() + 1));
              CHECK(job.tensors().empty());
              group.check();
            });
          }
          group.barrier();
        }) == "");
}

TEST_CASE("a function that goes on after a torn commit is refused its next call of dtrain") {
  const auto after_torn_commit = [](auto call) {
    return thrown_alone([call](auto& job, Group group) {
      CHECK_THROWS_AS(job.commit([] { throw std::runtime_error("half a step"); }), std::runtime_error);
      call(job, group);
    });
  };
  CHECK_CONTAINS(after_torn_commit([](auto&, const Group& group) { group.barrier(); }),
                 "a call of dtrain was made after the function of commit() had thrown");
  CHECK_CONTAINS(after_torn_commit([](auto&, const Group& group) { group.store().set("a", "b").wait(); }),
                 "let the exception through");
  CHECK_CONTAINS(after_torn_commit([](auto& job, const Group&) { job.commit(); }),
                 "commit() was called after the function of commit() had thrown: the state is torn");
}

TEST_CASE("commit() is refused in a step that has not ended") {
  const std::string refused = "commit() was called in a step that has not ended, such as between begin() and finish()";
  for (const bool has_function : {false, true}) {
    CAPTURE(has_function);
    const auto commit = [has_function](auto& job) { has_function ? job.commit([] {}) : job.commit(); };
    CHECK_CONTAINS(thrown_alone([&](auto& job, Group group) {
                     Model model;
                     dtrain::DistributedDataParallel ddp{model, group};
                     dtrain::Step step = ddp.begin();
                     step.ready(0);
                     commit(job);
                   }),
                   refused);
    CHECK_CONTAINS(thrown_alone([&](auto& job, Group group) {
                     Model model;
                     Model other;
                     dtrain::DistributedDataParallel ddp{model, group};
                     dtrain::DistributedDataParallel another{other, group};
                     ddp.backward([&](dtrain::Ready ready) {
                       ready(0);
                       commit(job);
                     });
                   }),
                   refused);
    CHECK(thrown_alone([&](auto& job, Group group) {
            Model model;
            dtrain::DistributedDataParallel ddp{model, group};
            dtrain::Step step = ddp.begin();
            step.ready(0);
            step.finish();
            commit(job);
            ddp.backward([](dtrain::Ready ready) { ready(0); });
            commit(job);
            CHECK(job.step() == 2);
          }) == "");
  }
}

TEST_CASE("commit() is refused after a step that has failed on this rank") {
  CHECK_CONTAINS(thrown_alone([](auto& job, Group group) {
                   Model model;
                   dtrain::DistributedDataParallel ddp{model, group};
                   CHECK_THROWS_AS(ddp.backward([](dtrain::Ready) { throw std::runtime_error("a mistake"); }),
                                   std::runtime_error);
                   CHECK_ERROR(job.commit(), dtrain::Errc::invalid_argument, "in a step that has not ended");
                   throw std::runtime_error("it was refused");
                 }),
                 "it was refused");
}

TEST_CASE("resume_at() takes no steps back") {
  CHECK_CONTAINS(thrown_alone([](auto& job, Group group) {
                   CHECK(job.attempt() == 1);
                   Model model;
                   const dtrain::DistributedDataParallel ddp{model, group};
                   job.resume_at(5);
                   job.commit();
                   CHECK(job.step() == 6);
                   job.resume_at(4);
                 }),
                 "resume_at(4) after 6 steps");
}

TEST_CASE("commit() is refused while gradients of no_sync() are not reduced") {
  const auto after = [](bool has_scope, bool has_function, bool reduces) {
    return thrown_alone([=](auto& job, Group group) {
      Model model;
      dtrain::DistributedDataParallel ddp{model, group};
      const auto backward = [&ddp] { ddp.backward([](dtrain::Ready ready) { ready(0); }); };
      {
        const auto apart = ddp.no_sync();
        backward();
        if (has_scope && has_function) job.commit([] {});
        if (has_scope) job.commit();
      }
      if (reduces) backward();
      if (has_function) job.commit([] {});
      job.commit();
      CHECK(job.step() == (has_function ? 2 : 1));
    });
  };
  for (const bool has_function : {false, true}) {
    CAPTURE(has_function);
    CHECK_CONTAINS(after(true, has_function, true), "commit() was called under no_sync(), or before a step had");
    CHECK_CONTAINS(after(false, has_function, false), "call it after a backward() outside of no_sync()");
    CHECK(after(false, has_function, true) == "");
  }
}

TEST_CASE("commit() is not refused once the passes under no_sync() are discarded") {
  CHECK(thrown_alone([](auto& job, Group group) {
          Model model;
          dtrain::DistributedDataParallel ddp{model, group};
          {
            const auto apart = ddp.no_sync();
            ddp.backward([](dtrain::Ready ready) { ready(0); });
          }
          ddp.discard_accumulated();
          job.commit();
          CHECK(job.step() == 1);
        }) == "");
}

TEST_CASE("resume_at() of more steps is refused before all ranks can have the state") {
  const std::string path = "/tmp/dtrain_resume_" + std::to_string(::getpid());
  CHECK_CONTAINS(thrown_alone([](auto& job, Group) {
                   job.resume_at(0);
                   job.commit();
                   job.resume_at(1);
                   job.resume_at(50);
                 }),
                 "resume_at(50) after 1 steps, before load_checkpoint() has loaded a file or a model is wrapped");
  CHECK_CONTAINS(thrown_alone([&](auto& job, Group group) {
                   Model model;
                   CHECK(!dtrain::load_checkpoint(group, path, dtrain::parameter_values(model.parameters())));
                   job.resume_at(50);
                 }),
                 "load the state on all ranks, wrap the model, then call resume_at()");
  CHECK(thrown_alone([&](auto& job, Group group) {
          Model model;
          dtrain::save_checkpoint(group, path, dtrain::parameter_values(model.parameters()));
          CHECK(dtrain::load_checkpoint(group, path, dtrain::parameter_values(model.parameters())));
          job.resume_at(50);
          CHECK(job.step() == 50);
        }) == "");
  CHECK(thrown_alone([&](auto& job, Group group) {
          Model model;
          const dtrain::DistributedDataParallel ddp{model, group};
          job.resume_at(50);
          CHECK(job.step() == 50);
        }) == "");
  std::remove(path.c_str());
}

namespace {

/// What a worker alone writes to stderr in 250 steps.
template <class... Hook>
std::string log_of(std::uint64_t commit_every, bool accumulates, Hook&&... hook) {
  support::CapturedStderr log;
  CHECK(thrown_alone([&](auto& job, Group group) {
          Model model;
          Model other;
          dtrain::DistributedDataParallel ddp{model, group, {}, std::ref(hook)...};
          dtrain::DistributedDataParallel another{other, group};
          const auto pass = [](dtrain::Ready ready) { ready(0); };
          for (std::uint64_t step = 1; step <= 250; ++step) {
            for (int i = 0; accumulates && i < 2; ++i) {
              const auto apart = ddp.no_sync();
              ddp.backward(pass);
            }
            ddp.backward(pass);
            if (sizeof...(hook) == 0) another.backward(pass);
            if (commit_every != 0 && step % commit_every == 0) job.commit();
          }
        }) == "");
  return log.text();
}

}  // namespace

TEST_CASE("a loop that commits no step is told so, once") {
  const std::string text = log_of(0, false);
  const auto first = text.find("rank 0: no step is committed");
  CHECK(first != std::string::npos);
  CHECK(text.find("no step is committed", first + 20) == std::string::npos);
}

TEST_CASE("a loop that commits is told nothing, also with accumulated gradients, or seldom for local steps") {
  CHECK(log_of(1, false) == "");
  CHECK(log_of(50, true) == "");
  dtrain::hooks::LocalSgd local{{.every = 200}};
  CHECK(log_of(0, false, local) == "");
}
