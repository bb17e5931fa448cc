#include <sched.h>

#include <barrier>

#include "unit/public_interface/prelude.hpp"

namespace {

struct ModelWithBuffers : BindingModel {
  ModelWithBuffers() : BindingModel({3, 5}) {}
  std::vector<dtrain::TensorView> buffers() {
    return {dtrain::tensor_view(means.data(), {3}), dtrain::tensor_view(&batches, {}),
            dtrain::tensor_view(means.data(), {0})};
  }
  std::vector<float> means = {0, 0, 0};
  std::int64_t batches = 0;
};

}  // namespace

TEST_CASE("the plan follows rank 0's ready order after the first step, on every rank, unless that is turned off") {
  struct Case {
    DdpOptions options;
    bool moves;
  };
  for (const Case& one : {Case{{.bucket_bytes = 0}, true}, Case{{.bucket_bytes = 0, .reorder_gradients = false}, false},
                          Case{{.bucket_bytes = 0, .deterministic = true}, false}}) {
    CAPTURE(one.options.deterministic);
    CAPTURE(one.options.reorder_gradients);
    run_well(3, [&](const Group& group) {
      BindingModel model({7, 100, 1, 30});
      DistributedDataParallel ddp{model, group, one.options};
      // Ranks differ in their orders; only rank 0's counts.
      const std::vector<std::size_t> order =
          group.rank() == 0 ? std::vector<std::size_t>{1, 3, 0, 2} : std::vector<std::size_t>{0, 1, 2, 3};
      for (int step = 0; step < 4; ++step) {
        ddp.backward([&](Ready ready) {
          for (const std::size_t i : order) {
            model.write(i, static_cast<float>(step * 10 + 3 * group.rank() + static_cast<int>(i)));
            ready(i);
          }
        });
        for (std::size_t i = 0; i < order.size(); ++i)
          CHECK(model.holds(i, static_cast<float>(step * 10 + 3 + static_cast<int>(i))));
        const std::vector<std::size_t> planned =
            one.moves ? std::vector<std::size_t>{2, 0, 3, 1} : std::vector<std::size_t>{3, 2, 1, 0};
        CHECK(ddp.plan().bucket_of == planned);
      }
      CHECK_FALSE(model.bindings > (one.moves ? 8 : 4));  // addresses change once at most
      CHECK_FALSE((one.moves && model.bindings == 4));
    });
  }
}

TEST_CASE("a pass under no_sync adds up on its rank, and the next step divides the sum by the ranks") {
  run_well(2, [&](const Group& group) {
    BindingModel model({4, 9});
    DistributedDataParallel ddp{model, group};
    const auto pass = [&](Ready ready) {
      for (std::size_t i = 2; i-- > 0;) {
        for (float& element : model.list[i].gradient.as<float>())
          element += static_cast<float>(1 + 2 * group.rank());
        ready(i);
      }
    };
    for (int round = 0; round < 3; ++round) {
      model.write(0, 0.0F);
      model.write(1, 0.0F);
      {
        const auto accumulating = ddp.no_sync();
        const auto nested = ddp.no_sync();
        for (int micro = 1; micro <= 3; ++micro) {
          ddp.backward(pass);
          CHECK(model.holds(0, static_cast<float>(micro * (1 + 2 * group.rank()))));
        }
        auto step = ddp.begin();
        CHECK_THROWS_AS(step.ready(9), dtrain::Error);
        std::vector<float> elsewhere(4);
        CHECK_CONTAINS(sentence_of([&] { step.ready(0, dtrain::tensor_view(elsewhere.data(), {4}), {}); }),
                       "no_sync()");
        step.finish();
      }
      ddp.backward(pass);
      CHECK((model.holds(0, 4 * 2.0F) && model.holds(1, 4 * 2.0F)));  // the mean of 1 and 3, four times
      CHECK(ddp.statistics().steps == static_cast<std::uint64_t>(round + 1));
      CHECK(ddp.statistics().unreduced_passes == static_cast<std::uint64_t>(4 * (round + 1)));
    }
  });
}

TEST_CASE("unused parameters count as zeros where that is allowed, whichever rank leaves them out") {
  run_well(4, [&](const Group& group) {
    BindingModel model({4, 9, 2, 40});
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 0, .allow_unused_parameters = true}};
    for (int step = 0; step < 4; ++step) {
      for (std::size_t i = 0; i < 4; ++i)
        model.write(i, 8.0F);
      ddp.backward([&](Ready ready) {
        for (std::size_t i = 0; i < 3; ++i) {
          if (static_cast<int>(i) != group.rank()) ready(i);
        }
      });
      for (std::size_t i = 0; i < 4; ++i)
        CHECK(model.holds(i, i == 3 ? 0.0F : 6.0F));
    }
  });
}

TEST_CASE("buffers are rank 0's from the start, and again after each step unless that is turned off") {
  for (const bool wanted : {true, false}) {
    CAPTURE(wanted);
    run_well(3, [&](const Group& group) {
      ModelWithBuffers model;
      model.means = {static_cast<float>(group.rank()), 1, 2};
      model.batches = 5 + group.rank();
      DistributedDataParallel ddp{model, group, {.broadcast_buffers = wanted}};
      CHECK((model.means[0] == 0.0F && model.batches == 5));
      for (int step = 0; step < 3; ++step) {
        model.means[1] = static_cast<float>(10 * step + group.rank());  // as a forward pass does
        model.batches = 100 * step + group.rank();
        ddp.backward([](Ready ready) { all_ready(ready, 2); });
        const int from = wanted ? 0 : group.rank();
        CHECK(model.means[1] == static_cast<float>(10 * step + from));
        CHECK(model.batches == 100 * step + from);
      }
    });
  }
}

TEST_CASE("ranks whose buffers differ in size are told before they train") {
  struct Sized : BindingModel {
    explicit Sized(std::size_t count) : BindingModel({2}), means(count) {}
    std::vector<dtrain::TensorView> buffers() {
      return {dtrain::tensor_view(means.data(), {static_cast<std::int64_t>(means.size())})};
    }
    std::vector<float> means;
  };
  for (const RankEnd& end : run_groups<Policy>(2, [&](const Group& group) {
         Sized model(group.rank() == 1 ? 4 : 3);
         DistributedDataParallel ddp{model, group};
       }))
    CHECK(end.text ==
          "ranks disagree: rank 1's parameter 1 '(buffer 0)' is f32 [4], rank 0's is f32 [3]; build the same model on "
          "all ranks");
}

TEST_CASE("more buckets than a stream holds do not make ready wait for other ranks") {
  constexpr std::size_t gradients = 700;
  for (const Progress progress : {Progress::caller, Progress::thread}) {
    CAPTURE(static_cast<int>(progress));
    std::barrier<> announced(2);
    run_well(2, [&](const Group& group) {
      BindingModel model(std::vector<std::size_t>(gradients, 3));
      DistributedDataParallel ddp{model, group, {.bucket_bytes = 0, .progress = progress}};
      for (int step = 0; step < 3; ++step) {
        if (group.rank() == 1) announced.arrive_and_wait();  // rank 0 has announced everything, and waited for nobody
        ddp.backward([&](Ready ready) {
          write_gradients(model, ready, [&](std::size_t i, std::size_t) {
            return static_cast<float>(2 * group.rank() + static_cast<int>(i));
          });
          if (group.rank() == 0) announced.arrive_and_wait();
        });
        for (std::size_t i = 0; i < gradients; ++i)
          CHECK(model.holds(i, static_cast<float>(1 + static_cast<int>(i))));
      }
    });
  }
}

TEST_CASE("steps of two wrappers with more buckets than a stream holds may end in another order on each rank") {
  constexpr std::size_t gradients = 150;
  for (const Progress progress : {Progress::caller, Progress::thread}) {
    CAPTURE(static_cast<int>(progress));
    run_well(2, [&](const Group& group) {
      BindingModel one(std::vector<std::size_t>(gradients, 3));
      BindingModel two(std::vector<std::size_t>(gradients, 3));
      const DdpOptions options{.bucket_bytes = 0, .progress = progress};
      DistributedDataParallel first{one, group, options};
      DistributedDataParallel second{two, group, options};
      for (int step = 0; step < 4; ++step) {
        auto a = first.begin();
        auto b = second.begin();
        for (std::size_t i = gradients; i-- > 0;) {
          one.write(i, static_cast<float>(2 * group.rank() + step));
          a.ready(i);
          two.write(i, static_cast<float>(2 * group.rank() + 10 * step));
          b.ready(i);
        }
        if ((group.rank() + step) % 2 == 0) {
          a.finish();
          b.finish();
        } else {
          b.finish();
          a.finish();
        }
        for (std::size_t i = 0; i < gradients; ++i)
          CHECK((one.holds(i, static_cast<float>(1 + step)) && two.holds(i, static_cast<float>(1 + 10 * step))));
      }
    });
  }
}

TEST_CASE("a model that binds its gradients is in one wrapper at a time") {
  run_well(2, [&](const Group& group) {
    BindingModel model({4});
    BindingModel other({4});
    {
      DistributedDataParallel ddp{model, group};
      DistributedDataParallel beside{other, group};
      CHECK_ERROR((DistributedDataParallel{model, group}), Errc::invalid_argument,
                  "the gradient of parameter 0 'layer0' is bound to another DistributedDataParallel");
      ddp.backward([](Ready ready) { ready(0); });
    }
    model.list[0].gradient = dtrain::tensor_view(model.gradients[0].data(), {4});
    DistributedDataParallel again{model, group};
    again.backward([](Ready ready) { ready(0); });
  });
}

TEST_CASE("the summary line says why nothing was hidden, and nothing where a thread hides what it can") {
  struct Case {
    Progress progress;
    const char* reason;
  };
  for (const Case& one : {Case{Progress::automatic, "no free core; progress = thread starts a thread all the same"},
                          Case{Progress::caller, "progress = caller"}, Case{Progress::thread, nullptr}}) {
    CAPTURE(name(one.progress));
    std::string line;
    run_well(2, [&](const Group& group) {
      cpu_set_t all;
      CPU_ZERO(&all);
      if (::sched_getaffinity(0, sizeof(all), &all) != 0) throw std::runtime_error("sched_getaffinity failed");
      cpu_set_t first;
      CPU_ZERO(&first);
      int core = 0;
      while (!CPU_ISSET(core, &all))
        ++core;
      CPU_SET(core, &first);
      if (::sched_setaffinity(0, sizeof(first), &first) != 0) throw std::runtime_error("sched_setaffinity failed");
      BindingModel model({4, 9});
      DistributedDataParallel ddp{model, group, {.progress = one.progress}};
      for (int step = 0; step < 3; ++step) {
        ddp.backward([](Ready ready) { all_ready(ready, 2); });
      }
      const std::string mine = ddp.summary();
      if (group.rank() == 0) line = mine;
    });
    CAPTURE(line);
    if (one.reason != nullptr) {
      CHECK_CONTAINS(line, std::string(" ms: ") + one.reason + "), exposed ");
    } else {
      CHECK(line.find("no free core") == std::string::npos);
      CHECK(line.find("progress") == std::string::npos);
    }
  }
}

TEST_CASE("the times of each step are recorded in an order that makes sense, and add up") {
  run_well(2, [&](const Group& group) {
    BindingModel model({4, 9, 2, 40});
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 0, .timeline = true}};
    for (int step = 0; step < 5; ++step) {
      ddp.backward([&](Ready ready) { all_ready(ready, 4); });
    }
    const std::vector<StepRecord> records = ddp.records(2);
    for (std::uint64_t step = 2; step <= 5; ++step) {
      std::map<std::pair<StepEvent, std::uint32_t>, StepRecord::Clock::time_point> times;
      for (const StepRecord& record : records) {
        if (record.step == step) times[{record.event, record.index}] = record.time;
      }
      CHECK(times.size() == 3 + 4 * 4);
      for (std::uint32_t bucket = 0; bucket < 4; ++bucket) {
        const auto of = [&](StepEvent event) { return times[{event, bucket}]; };
        const auto parameter = static_cast<std::uint32_t>(ddp.plan().buckets[bucket].parameters[0]);
        CHECK(times[{StepEvent::begun, 0}] <= times[{StepEvent::ready, parameter}]);
        CHECK(times[{StepEvent::ready, parameter}] <= of(StepEvent::launched));
        CHECK(of(StepEvent::launched) <= of(StepEvent::started));
        CHECK(of(StepEvent::started) <= of(StepEvent::reduced));
        CHECK(of(StepEvent::reduced) <= times[{StepEvent::finished, 0}]);
      }
      CHECK(times[{StepEvent::waiting, 0}] <= times[{StepEvent::finished, 0}]);
    }
    const dtrain::ddp::ReducerStatistics statistics = ddp.statistics();
    CHECK((statistics.is_measured && statistics.times.communication.count() > 0));
    CHECK(statistics.times.hidden <= statistics.times.communication);
    const std::string summary = ddp.summary();
    CHECK(summary.find("a step of 5: forward ") == 0);
    CHECK(summary.find("; slowest rank ") != std::string::npos);
    CHECK(ddp.slowest_rank().rank < 2);
  });
}

TEST_CASE("the slowest rank is the one for which the others wait, also in a collective of the program") {
  run_well(2, [&](const Group& group) {
    BindingModel model({4});
    DistributedDataParallel ddp{model, group};
    for (int step = 0; step < 5; ++step) {
      if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(60));
      static_cast<void>(group.all_reduce(1.0F));  // rank 0 is no slower for its wait here
      ddp.backward([](Ready ready) { all_ready(ready, 1); });
    }
    CHECK(ddp.slowest_rank().rank == 1);
    const dtrain::StepTimes times = ddp.statistics().times;
    CHECK(times.waiting <= times.forward + times.backward);
    const std::string summary = ddp.summary();
    if (group.rank() == 0) {
      CHECK(times.waiting > std::chrono::milliseconds(20));
      CHECK_CONTAINS(summary, ", of both waiting ");
    }
  });
}
