// hooks::LocalSgd in elastic jobs: commits after averages only, and weights that are put back when a rank is lost.

#include "unit/elastic/prelude.hpp"

using dtrain::hooks::LocalSgd;

namespace {

using Job = dtrain::Elastic<Policy>;

/// Whole numbers. The ranks' steps differ, but their mean depends on the step only.
struct Model : support::LayeredModel<300> {
  Model() : LayeredModel(0) {}

  void step(std::uint64_t number, const Group& group) {
    const int apart = 2 * group.rank() - (group.world_size() - 1);
    for (std::size_t i = 0; i < layers; ++i) {
      for (std::size_t j = 0; j < width; ++j) {
        values[i][j] += static_cast<float>(1 + (number + i + j) % 5) + static_cast<float>(apart);
      }
    }
    velocity += static_cast<float>(number);
  }

  float velocity = 0;  ///< of an optimizer
};

/// Calls `function(job, group, model)` as the worker `slot` of a job of two at most. @returns what train() threw
using Function = std::function<void(const Job&, const Group&, Model&)>;
std::string run(const FormationProcess& launcher, int slot, Model& model, const Function& function,
                bool copies = true) {
  const auto process = support::elastic_process(launcher.address().port, slot, 2);
  ElasticWorker worker(process);
  const dtrain::GroupOptions options;
  const Job job(worker, options);
  if (copies) {
    job.keep_copy(dtrain::parameter_values(model.parameters()));
  } else {
    job.keep(dtrain::parameter_values(model.parameters()));
  }
  job.keep_copy({{"velocity", dtrain::tensor_view(&model.velocity, {})}});
  try {
    job.train([&](Group group) { function(job, group, model); });
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

dtrain::rendezvous::FormationOptions of_workers(int most) {
  dtrain::rendezvous::FormationOptions options;
  options.max_workers = most;
  options.reconnect_timeout = 1ms;  // nobody says that the thread of a worker has ended
  return options;
}

std::string run_alone(const Function& function, bool copies = true) {
  const FormationProcess launcher(of_workers(1));
  Model model;
  return run(launcher, 0, model, function, copies);
}

void backward(auto& ddp) {
  ddp.backward([](dtrain::Ready ready) {
    for (std::size_t i = Model::layers; i-- > 0;) {
      ready(i);
    }
  });
}

/// Rounds of three local steps each. Calls `at_step(job, group, number)` before each.
Function rounds(std::uint64_t count, const std::function<void(const Job&, const Group&, std::uint64_t)>& at_step) {
  return [=](const Job& job, const Group& group, Model& model) {
    LocalSgd local{{.every = 3}};
    local.set_steps(3 * job.step());
    dtrain::DistributedDataParallel ddp{model, group, {}, std::ref(local)};
    while (job.step() < count) {
      do {
        at_step(job, group, local.steps());
        backward(ddp);
        model.step(local.steps(), group);
      } while (!local.average(group));
      job.commit();
    }
  };
}

}  // namespace

TEST_CASE("commit() is refused between two averages of LocalSgd") {
  const auto after = [](const Function& step) {
    return run_alone([&step](const Job& job, const Group& group, Model& model) { step(job, group, model); });
  };
  CHECK(after([](const Job& job, const Group& group, Model& model) {
          LocalSgd local{{.every = 2, .start_after = 1}};
          dtrain::DistributedDataParallel ddp{model, group, {}, std::ref(local)};
          const auto step = [&] {
            backward(ddp);
            return local.average(group);
          };
          step();
          job.commit();  // after a reduced step
          step();
          for (const bool has_function : {false, true}) {
            CHECK_ERROR(has_function ? job.commit([] {}) : job.commit(), dtrain::Errc::invalid_argument,
                        "commit() was called after a step that has left each rank its own weights",
                        "call it after average() has returned true, or after average_now()");
          }
          CHECK(step());
          job.commit([] {});
          step();
          local.average_now(group);
          job.commit();
          CHECK(job.step() == 3);
        }) == "");
}

TEST_CASE("commit() of a model with LocalSgd is refused if its weights are not put back") {
  const auto one_step = [](const Job& job, const Group& group, Model& model) {
    LocalSgd local{{.every = 1}};
    dtrain::DistributedDataParallel ddp{model, group, {}, std::ref(local)};
    backward(ddp);
    local.average(group);
    job.commit();
  };
  CHECK(run_alone(one_step) == "");
  CHECK_CONTAINS(run_alone(one_step, false), "whose weights are not given to keep_copy()",
                 "give keep_copy() the parameters and the optimizer's state");
}

TEST_CASE("a training with LocalSgd goes on from the last average when a rank is lost") {
  constexpr std::uint64_t count = 6;
  const FormationProcess alone(of_workers(1));
  Model undisturbed;
  CHECK(run(alone, 0, undisturbed, rounds(count, [](const Job&, const Group&, std::uint64_t) {})) == "");

  const FormationProcess launcher(of_workers(2));
  Model survivor;
  std::string thrown;
  std::thread living(
      [&] { thrown = run(launcher, 0, survivor, rounds(count, [](const Job&, const Group&, std::uint64_t) {})); });
  Model lost;
  const auto at_eight = [](const Job&, const Group&, std::uint64_t number) {
    if (number == 8) throw std::runtime_error("a mistake");  // the last local step of the third round
  };
  CHECK(run(launcher, 1, lost, rounds(count, at_eight)) == "a mistake");
  living.join();
  CHECK(thrown == "");
  CHECK(survivor.values == undisturbed.values);
  CHECK(survivor.velocity == undisturbed.velocity);
}

TEST_CASE("a model that is wrapped again after local steps of an attempt gets rank 0's values") {
  const FormationProcess launcher(of_workers(2));
  const Function function = [](const Job& job, const Group& group, Model& model) {
    if (job.step() == 0) {
      LocalSgd local{{.every = 1}};
      dtrain::DistributedDataParallel ddp{model, group, {}, std::ref(local)};
      backward(ddp);
      local.average(group);
      job.commit();
      group.barrier();
      if (job.local_rank() == 1) throw std::runtime_error("a mistake");
    }
    if (group.world_size() == 1) job.commit();  // before it, nobody ends this attempt
    while (group.world_size() == 1) {           // until the other one comes
      group.barrier();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    LocalSgd local{{.every = 3}};
    {
      dtrain::DistributedDataParallel ddp{model, group, {}, std::ref(local)};
      backward(ddp);
      model.step(local.steps(), group);
      local.average(group);
    }
    const dtrain::DistributedDataParallel plain{model, group};
    std::vector<std::uint32_t> digests(2);
    group.all_gather(std::array<std::uint32_t, 1>{model.digest()}, digests);
    CHECK(digests[0] == digests[1]);
  };
  Model survivor;
  std::string thrown;
  std::thread living([&] { thrown = run(launcher, 0, survivor, function); });
  Model lost;
  CHECK(run(launcher, 1, lost, function) == "a mistake");
  Model another;
  CHECK(run(launcher, 1, another, function) == "");
  living.join();
  CHECK(thrown == "");
}
