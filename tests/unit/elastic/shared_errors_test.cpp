// Errors that every rank throws alike, and errors of a process that lacks the means to join.
#include <barrier>
#include <cerrno>

#include "unit/elastic/prelude.hpp"

namespace {

struct Model {
  std::vector<float> weights = std::vector<float>(40, 0);
  std::vector<float> gradients = std::vector<float>(40);

  std::vector<dtrain::Parameter> parameters() {
    return {{"w", dtrain::tensor_view(weights), dtrain::tensor_view(gradients)}};
  }
};

dtrain::rendezvous::FormationOptions sizes(int most) {
  dtrain::rendezvous::FormationOptions options;
  options.max_workers = most;
  options.first_formation = 1ms;
  options.collect = 1ms;
  options.least_resize_gap = 0ms;
  options.least_pause = 1ms;
  options.reconnect_timeout = 1ms;  // nobody says that the thread of a worker has ended
  return options;
}

/// What became of a worker.
struct End {
  std::string thrown;
  bool is_of_job = false;    ///< JobFailed
  bool is_rejected = false;  ///< with exit code 2
  float weight = 0;
};

/// Runs `function(job, model, group)` as the worker in that slot.
template <class F>
End run_worker(FormationProcess& launcher, int slot, F function) {
  End end;
  const auto process = support::elastic_process(launcher.address().port, slot, 4);
  ElasticWorker worker(process);
  const dtrain::GroupOptions options;
  const dtrain::Elastic<Policy> job(worker, options);
  Model model;
  job.keep(dtrain::parameter_values(model.parameters()));
  try {
    job.train([&](Group group) { function(job, model, group); });
  } catch (const dtrain::JobFailed& failed) {
    end.thrown = failed.what();
    end.is_of_job = true;
  } catch (const dtrain::Error& error) {
    end.thrown = error.what();
    end.is_rejected = error.code() == dtrain::make_error_code(dtrain::Errc::usage);
  } catch (const std::exception& error) {
    end.thrown = error.what();
  }
  end.weight = model.weights.front();
  return end;
}

/// One step of gradient 1.
template <class Job, class Wrapped>
void step(const Job& job, Model& model, Wrapped& ddp, float extra = 0) {
  ddp.backward([&](dtrain::Ready ready) {
    std::fill(model.gradients.begin(), model.gradients.end(), 1.0F);
    ready(0);
  });
  job.commit([&] {
    for (std::size_t i = 0; i < model.weights.size(); ++i)
      model.weights[i] += model.gradients[i] + extra;
  });
}

/// Runs as many workers as threads.
template <class F>
std::vector<End> run_workers(int count, F function) {
  dtrain::rendezvous::FormationOptions options = sizes(count);
  options.first_formation = 60s;  // all are in the first attempt
  FormationProcess launcher(options);
  std::vector<End> ends(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int slot = 0; slot < count; ++slot) {
    threads.emplace_back([&, slot] {
      ends[static_cast<std::size_t>(slot)] =
          run_worker(launcher, slot, [&](auto& job, Model& model, Group group) { function(slot, job, model, group); });
    });
  }
  for (std::thread& each : threads)
    each.join();
  return ends;
}

/// Each worker makes 10 steps, those in slots 1 to `wrong` a wrong one; all compare values after the seventh.
std::vector<End> diverge(int count, int wrong = 1) {
  return run_workers(count, [wrong](int slot, auto& job, Model& model, Group group) {
    dtrain::DistributedDataParallel ddp{model, group};
    while (job.step() < 10) {
      step(job, model, ddp, slot >= 1 && slot <= wrong && job.step() == 4 ? 1 : 0);
      if (job.step() == 7) ddp.compare_values();
    }
  });
}

}  // namespace

TEST_CASE("compare_values() ends the worker that most ranks differ from, and the job goes on with their weights") {
  for (int repeat = 0; repeat < 3; ++repeat) {
    const std::vector<End> ends = diverge(3);
    for (const int slot : {0, 2}) {
      CAPTURE(slot);
      CHECK(ends[static_cast<std::size_t>(slot)].thrown == "");
      CHECK(ends[static_cast<std::size_t>(slot)].weight == 10);
    }
    CHECK_CONTAINS(ends[1].thrown, "after 7 steps the values of parameter 0 'w' differ: rank ", " has other values");
    CHECK_FALSE(ends[1].is_of_job);
  }
}

TEST_CASE("compare_values() ends all workers that most ranks differ from, also if these are equal") {
  const std::vector<End> ends = diverge(5, 2);
  for (const std::size_t slot : {0u, 3u, 4u}) {
    CAPTURE(slot);
    CHECK(ends[slot].thrown == "");
    CHECK(ends[slot].weight == 10);
  }
  for (const std::size_t slot : {1u, 2u}) {
    CAPTURE(slot);
    CHECK_CONTAINS(ends[slot].thrown, "the values of parameter 0 'w' differ: ranks ", " have other values than ranks ");
  }
}

TEST_CASE("compare_values() ends the job where no majority says which rank is wrong") {
  for (const End& end : diverge(2)) {
    CHECK(end.is_of_job);
    CHECK_CONTAINS(end.thrown, "ranks disagree: after 7 steps the values of parameter 0 'w' differ");
  }
}

TEST_CASE("a newcomer whose sampler has other settings is rejected before its first step") {
  FormationProcess launcher(sizes(2));
  std::atomic<bool> ends{false};
  std::atomic<std::uint64_t> steps{0};
  const auto train = [&](int batch, auto& job, Model& model, Group group) {
    dtrain::DistributedDataParallel ddp{model, group};
    const dtrain::DistributedSampler sampler{group,
                                             {.dataset_size = 1000, .global_batch = static_cast<std::size_t>(batch)}};
    for (; !ends; steps = job.step())
      step(job, model, ddp);
  };
  End first;
  std::thread thread([&] {
    first =
        run_worker(launcher, 0, [&](auto& job, Model& model, Group group) { train(10, job, model, std::move(group)); });
  });
  CHECK(support::holds_soon([&] { return steps >= 3; }));
  const End second =
      run_worker(launcher, 1, [&](auto& job, Model& model, Group group) { train(20, job, model, std::move(group)); });
  CHECK(second.is_rejected);
  CHECK_CONTAINS(second.thrown, "the DistributedSamplers of the ranks differ: global_batch=10", "global_batch=20");
  const std::uint64_t before = steps;
  CHECK(support::holds_soon([&] { return steps >= before + 10; }));
  ends = true;
  thread.join();
  CHECK(first.thrown == "");
  CHECK(first.weight == static_cast<float>(steps.load()));  // each step was trained with 10 samples
}

TEST_CASE("samplers that differ in the first attempt end the job before its first step") {
  FormationProcess launcher([] {
    dtrain::rendezvous::FormationOptions options = sizes(2);
    options.min_workers = 2;
    return options;
  }());
  std::vector<End> ends(2);
  std::vector<std::thread> threads;
  for (const int slot : {0, 1}) {
    threads.emplace_back([&, slot] {
      ends[static_cast<std::size_t>(slot)] = run_worker(launcher, slot, [&](auto& job, Model& model, Group group) {
        dtrain::DistributedDataParallel ddp{model, group};
        const dtrain::DistributedSampler sampler{
            group, {.dataset_size = 1000, .global_batch = 10, .seed = static_cast<std::uint64_t>(slot)}};
        step(job, model, ddp);
      });
    });
  }
  for (std::thread& each : threads)
    each.join();
  for (const End& end : ends) {
    CHECK(end.is_of_job);
    CHECK_CONTAINS(end.thrown,
                   "before the first step the DistributedSamplers of the ranks differ: seed=", "seed=0 on rank",
                   "seed=1 on rank");
    CHECK(end.weight == 0);
  }
}

TEST_CASE("an error that all ranks throw alike ends none of them, and the job goes on once it passes") {
  FormationProcess launcher([] {
    dtrain::rendezvous::FormationOptions options = sizes(3);
    options.min_workers = 2;
    return options;
  }());
  std::atomic<int> refusals{0};
  std::barrier both(2);  // else one of them may learn of the other's error first
  const auto run = [&](int slot) {
    return run_worker(launcher, slot, [&](auto& job, Model& model, Group group) {
      dtrain::DistributedDataParallel ddp{model, group};
      step(job, model, ddp);
      if (group.world_size() == 2) {
        ++refusals;
        both.arrive_and_wait();
        throw std::runtime_error("needs 1 or 3 ranks");
      }
      while (job.step() < 30)
        step(job, model, ddp);
    });
  };
  std::vector<End> ends(3);
  std::vector<std::thread> threads;
  for (const std::size_t slot : {0u, 1u})
    threads.emplace_back([&, slot] { ends[slot] = run(static_cast<int>(slot)); });
  CHECK(support::holds_soon([&] { return refusals >= 4; }));
  threads.emplace_back([&] { ends[2] = run(2); });
  for (std::thread& each : threads)
    each.join();
  for (const End& end : ends) {
    CHECK(end.thrown == "");
    CHECK(end.weight == 30);
  }
}

namespace {

/// A body that cannot start a thread in its first attempts to join after the first attempt, and then trains.
class ShortOfThreads final : public dtrain::elastic::AttemptBody {
 public:
  /// @param further if not 0: the first attempt that is joined times out, and so many fail again after it
  ShortOfThreads(int failures, int further) : failures_(failures), further_(further) {}

  dtrain::group::RankContext& join(const dtrain::rendezvous::ControlPlaneOptions& options) override {
    if (failures_-- > 0) throw dtrain::posix_error(EAGAIN, "starting the thread of an event loop");
    group_.emplace(Group::join(options, {}));
    return *dtrain::group::GroupAccess::of(*group_).rank_context();
  }
  void transfer(dtrain::elastic::KeptState&, const dtrain::rendezvous::Assignment&,
                const dtrain::rendezvous::TrainingProgress&) override {}
  int call() override {
    failures_ = std::exchange(further_, 0);
    if (failures_ <= 0) return 5;
    const dtrain::Cause cause{dtrain::CauseKind::timeout, 0, "here", "nobody answers"};
    dtrain::group::GroupAccess::of(*group_).rank_context()->control_plane.failure()->report(cause);
    throw dtrain::JobFailed(cause);
  }
  void drop() noexcept override { group_.reset(); }

 private:
  int failures_;
  int further_;
  std::optional<Group> group_;
};

/// Runs a ShortOfThreads as the only worker of a job. @returns the exit code @throws as ElasticWorker::run()
int run_short_of_threads(int failures, int further = 0) {
  dtrain::rendezvous::FormationOptions options = sizes(1);
  options.attempts_without_commit = 100;
  options.longest_pause = 10ms;
  FormationProcess launcher(options);
  const auto process = support::elastic_process(launcher.address().port, 0, 1);
  ElasticWorker worker(process);
  ShortOfThreads body(failures, further);
  return worker.run(body, "settings\n");
}

}  // namespace

TEST_CASE("a worker that lacks threads for a moment while the ranks are formed joins the attempt after it") {
  support::CapturedStderr captured;
  CHECK(run_short_of_threads(8) == 5);
  CHECK_CONTAINS(captured.text(), "attempt 8 has ended without a commit: rank 0",
                 "starting the thread of an event loop: Resource temporarily unavailable");
}

TEST_CASE("shortages before an attempt that a worker has joined do not count after it, and are not told again") {
  support::CapturedStderr captured;
  CHECK(run_short_of_threads(8, 8) == 5);
  const std::string log = captured.text();
  CHECK_CONTAINS(log, "attempt 8 has ended without a commit: rank 0", "attempt 17 has ended without a commit: rank 0");
  const std::size_t of_joined = log.find("attempt 9 has ended without a commit: ");
  REQUIRE(of_joined != std::string::npos);
  CHECK_CONTAINS(log.substr(of_joined, log.find('\n', of_joined) - of_joined), "nobody answers");
  CHECK_FALSE(support::contains(log, "worker 0: attempt 9 has ended"));  // a line for shortages
}

TEST_CASE("a worker that lacks threads for long ends by that error, and leaves the others the job") {
  CHECK_ERROR(run_short_of_threads(9), std::errc::resource_unavailable_try_again,
              "starting the thread of an event loop");
}
