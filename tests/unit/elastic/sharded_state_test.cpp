// ShardedOptimizers in elastic jobs: each call of the function begins with a checkpoint.

#include <filesystem>

#include "support/temporary_directory.hpp"
#include "unit/elastic/prelude.hpp"

using support::TemporaryFile;

namespace {

using Job = dtrain::Elastic<Policy>;

/// All ranks have the same gradients, small whole numbers, so that the weights are those of one rank, to the bit.
struct Model : support::LayeredModel<700> {
  Model() : LayeredModel(1) {}

  void backward(std::uint64_t step, dtrain::Ready ready) {
    for (std::size_t i = layers; i-- > 0;) {
      for (std::size_t j = 0; j < width; ++j) {
        gradients[i][j] = static_cast<float>(1 + (step * 7 + i + j) % 5);
      }
      ready(i);
    }
  }
  void spoil(int worker) {
    for (std::vector<float>& each : values) {
      std::fill(each.begin(), each.end(), static_cast<float>(worker));
    }
  }
};

dtrain::rendezvous::FormationOptions of_workers(int most) {
  dtrain::rendezvous::FormationOptions options;
  options.max_workers = most;
  options.collect = 1ms;
  options.least_resize_gap = 0ms;
  options.reconnect_timeout = 1ms;  // nobody says that the thread of a worker has ended
  return options;
}

/// Which of the calls that begin an attempt a program makes.
struct Calls {
  bool loads = true;
  bool resumes = true;
  bool restarts = false;  ///< the first attempt loads the checkpoint of an earlier job
};

constexpr std::uint64_t save_every = 4;

/// A training of `steps` steps as the guide has it. Calls `at_step(job, group, model)` before each step.
/// @returns what train() threw
std::string train(const FormationProcess& launcher, int slot, const std::string& path, Model& model,
                  std::uint64_t steps, const std::function<void(const Job&, const Group&)>& at_step,
                  const dtrain::ShardedOptions& stage, Calls calls = {}) {
  const auto process = support::elastic_process(launcher.address().port, slot, 3);
  ElasticWorker worker(process);
  const dtrain::GroupOptions options;
  const Job job(worker, options);
  std::int64_t step = 0;
  std::vector<dtrain::NamedTensor> tensors = dtrain::parameter_values(model.parameters());
  job.keep(tensors);
  tensors.push_back({"step", dtrain::tensor_view(&step, {})});
  try {
    const auto attempt = [&](const Group& group) {
      dtrain::DistributedDataParallel ddp{model, group, {.bucket_bytes = 0}};
      dtrain::ShardedOptimizer optimizer{ddp, dtrain::optimizers::Momentum{.rate = 0.001F}, stage};
      if (job.attempt() == 1 && calls.restarts) {
        CHECK(dtrain::load_checkpoint(group, path, tensors, optimizer));
        job.resume_at(static_cast<std::uint64_t>(step));
      } else if (job.attempt() == 1) {
        dtrain::save_checkpoint(group, path, tensors, optimizer);
      } else {
        if (calls.loads) CHECK(dtrain::load_checkpoint(group, path, tensors, optimizer));
        if (calls.resumes) job.resume_at(calls.loads ? static_cast<std::uint64_t>(step) : job.step());
      }
      while (job.step() < steps) {
        at_step(job, group);
        ddp.backward([&](dtrain::Ready ready) { model.backward(job.step(), ready); }, optimizer);
        job.commit();
        step = static_cast<std::int64_t>(job.step());
        if (job.step() % save_every == 0) dtrain::save_checkpoint(group, path, tensors, optimizer);
      }
    };
    job.train([&](Group group) {
      try {
        attempt(group);
      } catch (...) {
        model.spoil(slot);  // as half a step may
        throw;
      }
    });
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

/// The digest of the weights after so many steps of one rank.
std::uint32_t undisturbed(const std::string& path, std::uint64_t steps, const dtrain::ShardedOptions& stage) {
  const FormationProcess launcher(of_workers(1));
  Model model;
  CHECK(train(
            launcher, 0, path, model, steps, [](const Job&, const Group&) {}, stage) == "");
  return model.digest();
}

/// Three workers, one of which is lost in step 7; another one comes in step 13.
void check_losses(const std::string& path, const dtrain::ShardedOptions& stage) {
  constexpr std::uint64_t steps = 20;
  const std::uint32_t expected = undisturbed(path + ".undisturbed", steps, stage);
  const FormationProcess launcher(of_workers(3));
  support::Gate wants_another;
  std::array<Model, 3> models;
  std::array<std::string, 3> thrown;
  support::CapturedStderr log;
  const auto at_step = [&](const Job& job, const Group& group) {
    if (job.attempt() == 1 && job.step() == 7) {
      group.barrier();  // all have committed step 6
      if (job.local_rank() == 2) throw std::runtime_error("a mistake");
    }
    while (job.attempt() == 2 && job.step() == 13) {
      wants_another.open();
      group.barrier();
      std::this_thread::sleep_for(1ms);
    }
  };
  const auto run = [&](int slot) {
    const auto index = static_cast<std::size_t>(slot);
    thrown[index] = train(launcher, slot, path, models[index], steps, at_step, stage);
  };
  std::thread first([&] { run(0); });
  std::thread second([&] { run(1); });
  run(2);
  CHECK(thrown[2] == "a mistake");
  wants_another.pass();
  run(2);
  first.join();
  second.join();
  for (const std::string& text : thrown) {
    CHECK(text == "");
  }
  for (const Model& model : models) {
    CHECK(model.digest() == expected);
  }
  CHECK_CONTAINS(log.text(), "goes on at step 4, that of the checkpoint: steps that are trained again: 3\n",
                 "goes on at step 12, that of the checkpoint: steps that are trained again: 1\n");
  CHECK(log.text().find("its state differs") == std::string::npos);
}

/// One of two workers is lost before the step `lost_at`. @returns what the other one's train() throws
std::string thrown_without(const std::string& path, Calls calls, std::uint64_t lost_at = 2) {
  const FormationProcess launcher(of_workers(2));
  std::string thrown;
  const auto at_step = [lost_at](const Job& job, const Group& group) {
    if (job.step() != lost_at || job.attempt() != 1) return;
    group.barrier();  // both have loaded
    if (job.local_rank() == 1) throw std::runtime_error("a mistake");
    group.barrier();
  };
  std::thread living([&] {
    Model model;
    thrown = train(launcher, 0, path, model, 6, at_step, {}, calls);
  });
  Model lost;
  const Calls own{.restarts = calls.restarts};
  CHECK(train(launcher, 1, path, lost, 6, at_step, {}, own) == "a mistake");
  living.join();
  return thrown;
}

/// Calls `function(job, group, model)` in the only worker of a job.
void run_alone(const std::function<void(const Job&, const Group&, Model&)>& function) {
  const FormationProcess launcher(of_workers(1));
  const auto process = support::elastic_process(launcher.address().port, 0, 2);
  ElasticWorker worker(process);
  const dtrain::GroupOptions options;
  const Job job(worker, options);
  Model model;
  job.train([&](Group group) { function(job, group, model); });
}

}  // namespace

TEST_CASE_FIXTURE(TemporaryFile,
                  "a sharded training goes on from its checkpoint, with the bits of an undisturbed one") {
  check_losses(path + "1", {});
  check_losses(path + "2", {.early_update = true});
  check_losses(path + "3", {.stage = 2});
}

TEST_CASE_FIXTURE(TemporaryFile, "a later attempt without the checkpoint of a ShardedOptimizer is refused") {
  const std::string refusal = "backward() got a ShardedOptimizer without a checkpoint in a later attempt";
  CHECK_CONTAINS(thrown_without(path, {.loads = false, .resumes = false}), refusal,
                 "load_checkpoint() with the optimizer, then call resume_at(), in each call of the function");
  CHECK_CONTAINS(thrown_without(path, {.loads = false, .resumes = true}), refusal,
                 "load_checkpoint() with the optimizer");
  CHECK_CONTAINS(thrown_without(path, {.loads = true, .resumes = false}), refusal,
                 "call resume_at() with the checkpoint's step, after load_checkpoint()");
}

TEST_CASE_FIXTURE(TemporaryFile, "a ShardedOptimizer needs no checkpoint if a rank was lost before its first step") {
  CHECK(thrown_without(path, {.loads = false, .resumes = false}, 0) == "");
}

TEST_CASE_FIXTURE(TemporaryFile, "a state that was loaded is loaded again if a rank was lost before its first step") {
  undisturbed(path, save_every, {});
  CHECK_CONTAINS(thrown_without(path, {.loads = false, .resumes = true, .restarts = true}, save_every),
                 "backward() got a ShardedOptimizer without a checkpoint in a later attempt");
}

TEST_CASE_FIXTURE(TemporaryFile, "resume_at() of fewer steps needs the state of a ShardedOptimizer") {
  run_alone([&](const Job& job, const Group& group, Model& model) {
    dtrain::DistributedDataParallel ddp{model, group};
    dtrain::ShardedOptimizer optimizer{ddp, dtrain::optimizers::Sgd{}};
    const auto tensors = dtrain::parameter_values(model.parameters());
    dtrain::save_checkpoint(group, path, tensors, optimizer);
    job.resume_at(5);
    dtrain::save_checkpoint(group, path + ".plain", tensors);
    CHECK(dtrain::load_checkpoint(group, path + ".plain", tensors));
    CHECK_ERROR(job.resume_at(2), dtrain::Errc::invalid_argument, "resume_at(2) after 5 steps",
                "only where load_checkpoint() has loaded a ShardedOptimizer's state");
    CHECK(dtrain::load_checkpoint(group, path, tensors, optimizer));
    job.resume_at(2);
    CHECK(job.step() == 2);
    job.commit();
    CHECK(job.step() == 3);
    job.resume_at(9);
    CHECK(job.step() == 9);
  });
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "the next checkpoint removes the shard files of a rank that was killed while it wrote") {
  const std::string left = path + ".shard-00000000000000ab-1.part.attempt-1";
  const std::string other = path + ".shard-00000000000000ab-1.partly";
  run_alone([&](const Job&, const Group& group, Model& model) {
    dtrain::DistributedDataParallel ddp{model, group};
    dtrain::ShardedOptimizer optimizer{ddp, dtrain::optimizers::Momentum{}};
    for (const std::string& each : {left, other}) {
      dtrain::ddp::AtomicFile(each).commit();
    }
    dtrain::save_checkpoint(group, path, dtrain::parameter_values(model.parameters()), optimizer);
  });
  CHECK_FALSE(std::filesystem::exists(left));
  CHECK(std::filesystem::exists(other));
}
