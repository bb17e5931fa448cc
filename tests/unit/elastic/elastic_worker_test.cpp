#include <future>
#include <limits>
#include <map>
#include <set>

#include "unit/elastic/prelude.hpp"

namespace {

struct Model {
  std::vector<float> weights = std::vector<float>(300, 1);
  std::vector<float> gradients = std::vector<float>(300);
  float* bound = gradients.data();

  std::vector<dtrain::Parameter> parameters() {
    return {{"w", dtrain::tensor_view(weights), dtrain::tensor_view(bound, {300})}};
  }
  void bind_gradient(std::size_t, dtrain::TensorView where) { bound = reinterpret_cast<float*>(where.data); }
};

constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

struct Commits {
  void add(std::uint64_t step, float weight) {
    const std::lock_guard lock(mutex);
    weights[step].insert(weight);
    most = std::max(most.load(), step);
  }
  std::mutex mutex;
  std::map<std::uint64_t, std::set<float>> weights;  ///< after each step, on all workers
  std::atomic<std::uint64_t> most{0};
  std::atomic<std::uint64_t> last{never};  ///< the job's last step, once a worker has said it
};

/// Two workers at most; neither is waited for.
dtrain::rendezvous::FormationOptions two_at_once() {
  dtrain::rendezvous::FormationOptions options;
  options.max_workers = 2;
  options.first_formation = 1ms;
  options.collect = 1ms;
  options.least_resize_gap = 0ms;
  return options;
}

/// A worker until the job's last step, which it says itself where `ends_job`. It throws in its first step from
/// `fails_at` on. @returns the exit code, or the text of what it threw
std::string run_worker(const dtrain::launch::RankProcess& process, std::uint64_t fails_at, bool ends_job,
                       Commits& commits) {
  ElasticWorker worker(process);
  const dtrain::GroupOptions options;
  const dtrain::Elastic<Policy> job(worker, options);
  Model model;
  job.keep(dtrain::parameter_values(model.parameters()));
  try {
    const int code = job.train([&](Group group) {
      dtrain::DistributedDataParallel ddp{model, group};
      while (job.step() < commits.last) {
        ddp.backward([&](dtrain::Ready ready) {
          if (job.step() >= fails_at) {
            throw std::runtime_error("a mistake");
          }
          for (std::size_t i = 0; i < 300; ++i) {
            model.bound[i] = model.weights[i] * static_cast<float>(job.step() % 7 + 1);
          }
          ready(0);
        });
        job.commit([&] {
          for (std::size_t i = 0; i < 300; ++i) {
            model.weights[i] -= 0.001F * model.bound[i];
          }
        });
        commits.add(job.step(), model.weights[17]);
        if (ends_job && commits.last == never) commits.last = job.step() + 200;
        std::this_thread::sleep_for(1ms);
      }
      return 3;
    });
    return std::to_string(code);
  } catch (const dtrain::WorkerEnded&) {
    return "the job has finished without it";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("a rank that throws leaves, the others go on, and a newcomer has their state") {
  dtrain::rendezvous::FormationOptions sizes;
  sizes.min_workers = 2;
  sizes.max_workers = 3;
  sizes.collect = 20ms;
  sizes.least_resize_gap = 0ms;
  sizes.reconnect_timeout = 100ms;  // nobody says that the thread of a worker has ended
  FormationProcess launcher(sizes);
  Commits commits;
  std::vector<std::string> results(4);
  {
    std::vector<std::thread> threads;
    const auto start = [&](int slot, std::uint64_t fails_at, bool ends_job) {
      threads.emplace_back([&, slot, fails_at, ends_job] {
        const auto process = support::elastic_process(launcher.address().port, slot, 3);
        results[static_cast<std::size_t>(slot)] = run_worker(process, fails_at, ends_job, commits);
        std::uint64_t not_said = never;
        if (ends_job) commits.last.compare_exchange_strong(not_said, 0);  // it has failed: the others end, too
      });
    };
    start(0, never, false);
    start(1, never, false);
    start(2, 30, false);
    threads[2].join();
    const std::uint64_t left_at = commits.most;
    CHECK(support::holds_soon([&] { return commits.most >= left_at + 5; }));
    start(3, never, true);  // nobody ends before it has come
    threads.erase(threads.begin() + 2);
    for (std::thread& each : threads) {
      each.join();
    }
  }
  CHECK(results == std::vector<std::string>{"3", "3", "a mistake", "3"});
  CHECK(commits.weights.size() == commits.last);
  for (const auto& each : commits.weights) {
    CAPTURE(each.first);
    CHECK(each.second.size() == 1);
  }
}

TEST_CASE("a function that goes on after a torn commit ends its worker, and the others get that as the first cause") {
  dtrain::rendezvous::FormationOptions sizes;
  sizes.max_workers = 2;
  sizes.collect = 1ms;
  sizes.reconnect_timeout = 1ms;  // nobody says that the thread of a worker has ended
  FormationProcess launcher(sizes);
  std::array<std::string, 2> thrown;
  std::string first_cause;
  const auto run = [&](int slot) {
    const auto process = support::elastic_process(launcher.address().port, slot, 2);
    ElasticWorker worker(process);
    const dtrain::GroupOptions options;
    const dtrain::Elastic<Policy> job(worker, options);
    try {
      job.train([&](Group group) {
        if (slot == 1) {
          group.barrier();  // both have joined
          CHECK_THROWS_AS(job.commit([] { throw std::runtime_error("half a step"); }), std::runtime_error);
          return;
        }
        try {
          group.barrier();
          group.barrier();
        } catch (const std::exception& error) {
          first_cause = error.what();
          throw;
        }
      });
    } catch (const std::exception& error) {
      thrown[static_cast<std::size_t>(slot)] = error.what();
    }
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
  CHECK(thrown == std::array<std::string, 2>{"", "commit() threw, and the function of train() went on all the same"});
  CHECK_CONTAINS(first_cause, "commit() threw, and the function of train() went on all the same");
}

TEST_CASE("a second train() is refused") {
  CHECK_CONTAINS(thrown_alone([](auto& job, Group) { job.train([](Group) {}); }),
                 "train() was called a second time in this process");
}

TEST_CASE("a worker of another job's name or with other options is refused before anybody is interrupted") {
  FormationProcess launcher(two_at_once());
  std::atomic<bool> ends{false};
  std::atomic<int> attempts{0};
  std::atomic<std::uint64_t> steps{0};
  const auto run = [&](const dtrain::launch::RankProcess& process, const dtrain::GroupOptions& options) {
    ElasticWorker worker(process);
    const dtrain::Elastic<Policy> job(worker, options);
    try {
      job.train([&](Group group) {
        ++attempts;
        while (!ends) {
          group.barrier();
          job.commit();
          steps = job.step();
        }
      });
    } catch (const dtrain::Error& error) {
      CHECK(error.code() == dtrain::make_error_code(dtrain::Errc::usage));
      return std::string(error.what());
    }
    return std::string();
  };
  std::string first_error;
  std::thread first([&] { first_error = run(support::elastic_process(launcher.address().port, 0, 3), {}); });
  CHECK(support::holds_soon([&] { return steps >= 2; }));
  auto process = support::elastic_process(launcher.address().port, 1, 3);
  CHECK_CONTAINS(run(process, {.accumulate = dtrain::Accumulate::f32}), "this worker was refused: it has GroupOptions");
  process.timeout = 61s;
  CHECK_CONTAINS(run(process, {}), "it has DTRAIN_TIMEOUT_SECONDS=61, and the workers of the job have");
  process = support::elastic_process(launcher.address().port, 1, 3);
  process.identity.job = "DTRAIN_JOB_ID=another";
  CHECK_CONTAINS(run(process, {}),
                 "it has DTRAIN_JOB_ID=another, and the workers of the job have no DTRAIN_JOB_ID; start all");
  const std::uint64_t before = steps;
  CHECK(support::holds_soon([&] { return steps >= before + 10; }));
  ends = true;
  first.join();
  CHECK(first_error == "");
  CHECK(attempts == 1);
}

TEST_CASE("train() calls a function that could also take Arguments with the group alone") {
  FormationProcess launcher(dtrain::rendezvous::FormationOptions{});
  const auto process = support::elastic_process(launcher.address().port, 0, 3);
  ElasticWorker worker(process);
  const dtrain::GroupOptions options;
  std::size_t count = 0;
  dtrain::Elastic<Policy>(worker, options).train([&](auto... given) { count = sizeof...(given); });
  CHECK(count == 1);
}

/// @param waits call wait(), which throws because a rank is lost
static void check_checkpoint_of_lost_attempt(bool waits) {
  dtrain::rendezvous::FormationOptions sizes;
  sizes.max_workers = 2;
  sizes.reconnect_timeout = 1ms;
  FormationProcess launcher(sizes);
  std::promise<void> may_end;
  std::atomic<bool> is_written{false};
  std::atomic<int> attempts{0};
  const auto run = [&](int slot, auto function) {
    const auto process = support::elastic_process(launcher.address().port, slot, 3);
    ElasticWorker worker(process);
    const dtrain::GroupOptions options;
    const dtrain::Elastic<Policy> job(worker, options);
    job.train([&](Group group) { function(job, group); });
  };
  std::thread failing([&] {
    CHECK_THROWS_AS(run(1,
                        [](auto&, Group group) {
                          group.barrier();
                          throw std::runtime_error("a mistake");
                        }),
                    std::runtime_error);
  });
  run(0, [&](auto&, Group group) {
    if (++attempts == 2) return may_end.set_value();
    dtrain::PendingCheckpoint pending(
        [&is_written, end = may_end.get_future().share()] {
          end.wait();
          is_written = true;
        },
        [group](const std::function<void()>&) { group.barrier(); }, dtrain::ddp::detail::detach_thread(group));
    group.barrier();
    if (waits) pending.wait();
    group.barrier();
  });
  failing.join();
  CHECK(attempts == 2);
  CHECK(is_written);  // run() has joined the thread
}

TEST_CASE("the next attempt does not wait for a checkpoint that a thread of the last one writes") {
  check_checkpoint_of_lost_attempt(false);
  check_checkpoint_of_lost_attempt(true);
}

TEST_CASE("a worker whose job has finished keeps its bound gradients, although it cannot leave") {
  FormationProcess launcher(dtrain::rendezvous::FormationOptions{});
  const auto process = support::elastic_process(launcher.address().port, 0, 3);
  ElasticWorker worker(process);
  const dtrain::GroupOptions options;
  const dtrain::Elastic<Policy> job(worker, options);
  Model model;
  job.keep(dtrain::parameter_values(model.parameters()));
  const int code = job.train([&](Group group) {
    dtrain::DistributedDataParallel ddp{model, group};
    ddp.backward([](dtrain::Ready ready) { ready(0); });
    job.commit([] {});
    dtrain::group::GroupAccess::of(group).rank_context()->control_plane.control_thread().end();
    return 3;
  });
  CHECK(code == 3);
  CHECK(model.bound != model.gradients.data());
  model.bound[299] = 7;  // still mapped
  CHECK(model.parameters()[0].gradient.as<float>()[299] == 7);
}

TEST_CASE("a state that keep() does not name ends the job, once a worker has come that has not got it") {
  FormationProcess launcher(two_at_once());
  std::atomic<int> commits{0};
  std::array<std::string, 2> texts;
  const auto run = [&](int slot) {
    const auto process = support::elastic_process(launcher.address().port, slot, 3);
    ElasticWorker worker(process);
    const dtrain::GroupOptions options;
    const dtrain::Elastic<Policy> job(worker, options);
    Model model;
    float velocity = 0;
    job.keep(dtrain::parameter_values(model.parameters()));
    try {
      job.train([&](Group group) {
        dtrain::DistributedDataParallel ddp{model, group};
        for (;;) {
          group.barrier();
          job.commit([&] { model.weights[0] += (velocity += 1); });
          ++commits;
        }
      });
    } catch (const std::exception& error) {
      texts[static_cast<std::size_t>(slot)] = error.what();
    }
  };
  std::thread first([&] { run(0); });
  CHECK(support::holds_soon([&] { return commits >= 3; }));
  run(1);
  first.join();
  for (const std::string& text : texts) {
    CHECK_CONTAINS(text, "the weights of rank", "in which a worker received the state; give keep() all that a step");
  }
}
