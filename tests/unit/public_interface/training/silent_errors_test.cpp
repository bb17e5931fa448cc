// Mistakes of programs that would train wrongly without a word: gradients that are announced too early, ranks that
// train apart or on the same samples, optimizers that change nothing, and passes that a library overwrites.
#include "support/captured_stderr.hpp"
#include "unit/public_interface/prelude.hpp"

using dtrain::Adds;
using support::CapturedStderr;

namespace {

constexpr const char* changed = "the gradient of parameter 1 'layer1' changed after ready(1)";

/// The variable has the value while this lives.
struct CheckValues {
  explicit CheckValues(const char* value) { ::setenv("DTRAIN_CHECK_VALUES", value, 1); }
  ~CheckValues() { ::unsetenv("DTRAIN_CHECK_VALUES"); }
};

void fill(const dtrain::TensorView& gradient, float value) {
  const auto elements = gradient.as<float>();
  std::fill(elements.begin(), elements.end(), value);
}

/// In its step 3, the last rank writes gradient 1 when it has announced all gradients. All buckets are then enqueued.
/// Where other ranks have finished that step, their next one fails.
template <class Any>
void check_late_gradient(int ranks, const DdpOptions& options, bool is_sharded = false) {
  const std::vector<RankEnd> ends = run_groups<Policy>(ranks, [&](const Group& group) {
    Any model({100, 3000});
    DistributedDataParallel ddp{model, group, options};
    const auto train = [&](auto step_of) {
      for (int step = 1; step <= 4; ++step) {
        step_of([&](Ready ready) {
          fill_gradients(model, ready, static_cast<float>(step));
          if (step == 3 && group.rank() == ranks - 1) fill(model.list[1].gradient, 9.0F);
        });
      }
    };
    if (is_sharded) {
      ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}};
      train([&](auto pass) { ddp.backward(pass, optimizer); });
    } else {
      train([&](auto pass) { ddp.backward(pass); });
    }
  });
  const auto last = static_cast<std::size_t>(ranks - 1);
  CHECK_CONTAINS(ends[last].text, changed);
  for (std::size_t rank = 0; rank < last; ++rank) {
    CHECK(ends[rank].job_failed);
    CHECK_CONTAINS(ends[rank].text, changed);
  }
}

/// Steps in which rank 1, if there is one, sets values of its own after step 2.
void train_apart(const Group& group, int steps, std::size_t parameter) {
  Model model({10, 3000, 5});
  DistributedDataParallel ddp{model, group};
  for (int step = 1; step <= steps; ++step) {
    ddp.backward([](Ready ready) { all_ready(ready, 3); });
    for (std::vector<float>& values : model.values)
      values[0] += 1;
    if (step == 2 && group.rank() == 1) model.values[parameter][1] = 7.0F;
  }
}

/// Steps of a model whose optimizer adds `change` to a value in each of them.
void train_by(const Group& group, int steps, float change) {
  Model model({10, 3000});
  DistributedDataParallel ddp{model, group};
  for (int step = 0; step < steps; ++step) {
    ddp.backward([](Ready ready) { all_ready(ready, 2); });
    model.values[1][2999] += change;
  }
}

/// What a job logs whose ranks make a sampler each of the options that `options_of(rank)` lists, and one step.
template <class OptionsOf>
std::string log_of_samplers(int ranks, OptionsOf options_of) {
  CapturedStderr captured;
  run_well(ranks, [&](const Group& group) {
    for (const dtrain::SamplerOptions& options : options_of(group.rank()))
      dtrain::DistributedSampler(group, options);
    train_by(group, 1, 1);
  });
  return captured.text();
}

}  // namespace

TEST_CASE("a gradient that is written after ready() is every rank's end, bound or not, with any thread") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{1} << 20}) {
      const DdpOptions options{.bucket_bytes = bucket_bytes, .check_ready = true, .progress = Progress::caller};
      check_late_gradient<Model>(ranks, options);
      check_late_gradient<BindingModel>(ranks, options);  // the stream runs in finish(): what is written is seen
      check_late_gradient<BindingModel>(ranks, options, true);
    }
    check_late_gradient<Model>(ranks, {.check_ready = true, .progress = Progress::thread});
  }
}

TEST_CASE("a bound gradient that is written where it was reduced is found, too") {
  const std::vector<RankEnd> ends = run_groups<Policy>(2, [&](const Group& group) {
    BindingModel model({100, 3000});
    DistributedDataParallel ddp{
        model,
        group,
        {.bucket_bytes = 0, .reorder_gradients = false, .check_ready = true, .progress = Progress::thread}};
    auto step = ddp.begin();
    model.write(1, 1.0F + 2 * static_cast<float>(group.rank()));
    step.ready(1);
    if (group.rank() == 1) {
      const auto records = [&] {
        const auto all = ddp.records();
        return std::any_of(all.begin(), all.end(),
                           [](const StepRecord& each) { return each.event == StepEvent::reduced; });
      };
      CHECK(support::holds_soon(records));
      CHECK(model.list[1].gradient.as<float>()[0] == 2.0F);
      model.write(1, 5.0F);
    }
    step.ready(0);
    step.finish();
    auto next = ddp.begin();  // rank 0 may have finished the step
    next.ready(1);
    next.ready(0);
    next.finish();
  });
  CHECK_CONTAINS(ends[1].text, changed);
  CHECK(ends[0].job_failed);
}

TEST_CASE("checked steps are right with hooks, sharded optimizers and unused parameters, and passes under no_sync") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    run_well(ranks, [&](const Group& group) {
      const auto train = [&](auto& model, auto& ddp, auto step_of) {
        for (int step = 0; step < 4; ++step) {
          step_of(ddp, [&](Ready ready) {
            for (const std::size_t i : {1U, 0U}) {
              fill(model.list[i].gradient, static_cast<float>(step + group.rank()));
              ready(i);
            }
          });
        }
      };
      const auto plain = [](auto& ddp, auto pass) { ddp.backward(pass); };
      const DdpOptions options{.bucket_bytes = 0, .allow_unused_parameters = true, .check_ready = true};
      BindingModel bound({100, 3000, 2});
      DistributedDataParallel hooked{bound, group, options, dtrain::hooks::Cast<bfloat16>{}};
      train(bound, hooked, plain);
      CHECK(bound.holds(2, 0.0F));
      Model model({100, 3000, 2});
      DistributedDataParallel ddp{model, group, options};
      train(model, ddp, plain);
      ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}};
      train(model, ddp, [&](auto& wrapper, auto pass) { wrapper.backward(pass, optimizer); });
      ShardedOptimizer divided{ddp, optimizers::Sgd{.rate = 1}, dtrain::ShardedOptions{.stage = 2}};
      train(model, ddp, [&](auto& wrapper, auto pass) { wrapper.backward(pass, divided); });
    });
  }
}

TEST_CASE("passes of a library that overwrites its gradients are added by the wrapper, and reduced once") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    run_well(ranks, [&](const Group& group) {
      const float mean = static_cast<float>(ranks - 1) / 2;
      const auto check = [&](auto& model, auto& ddp, auto step_of) {
        const auto pass = [&](float value) {
          return [&model, value, &group](Ready ready) {
            fill_gradients(model, ready, value + static_cast<float>(group.rank()));
          };
        };
        for (int round = 0; round < 2; ++round) {
          {
            const auto held = ddp.no_sync(Adds::wrapper);
            ddp.backward(pass(1));
            ddp.backward(pass(2));
            CHECK_ERROR(ddp.no_sync(), Errc::invalid_argument, "another choice of dtrain::Adds");
          }
          step_of(pass(4));
        }
      };
      BindingModel bound({100, 3000});
      DistributedDataParallel ddp{bound, group, {.check_ready = true}};
      check(bound, ddp, [&](auto pass) {
        ddp.backward(pass);
        CHECK((bound.holds(0, 7.0F + 3 * mean) && bound.holds(1, 7.0F + 3 * mean)));
      });
      for (const bool divides : {false, true}) {
        Model model({100, 3000});
        DistributedDataParallel wrapper{model, group, {.check_ready = true}};
        const auto sharded = [&](auto stage) {
          ShardedOptimizer optimizer{wrapper, optimizers::Sgd{.rate = 1}, stage};
          check(model, wrapper, [&](auto pass) { wrapper.backward(pass, optimizer); });
        };
        divides ? sharded(dtrain::ShardedOptions{.stage = 2}) : sharded(dtrain::ShardedOptions{});
        CHECK(model.values[1] == std::vector<float>(3000, -2 * (7.0F + 3 * mean)));
      }
    });
  }
}

TEST_CASE(
    "compare_values() names the first parameter and the ranks that differ, on every rank, and training may go on") {
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    run_well(ranks, [&](const Group& group) {
      Model model({10, 3000, 5});
      DistributedDataParallel ddp{model, group};
      ddp.compare_values();
      if (group.rank() == 1) model.values[1][2999] = model.values[2][0] = 3.0F;
      const std::string others = ranks == 2 ? "rank 0" : "ranks 0, 2 and 3";
      CHECK_ERROR(ddp.compare_values(), Errc::disagreement,
                  "after 0 steps the values of parameter 1 'layer1' differ: rank 1 has other values than " + others);
      model.values[1][2999] = model.values[2][0] = 0.0F;
      ddp.compare_values();
      auto step = ddp.begin();
      CHECK_ERROR(ddp.compare_values(), Errc::invalid_argument, "compare_values() came while a step was under way");
      for (const std::size_t i : {2U, 1U, 0U})
        step.ready(i);
      step.finish();
      ddp.compare_values();
    });
  }
}

TEST_CASE("a value that has moved is named, and its old memory compared neither by a call nor at the wrapper's end") {
  CapturedStderr captured;
  const auto train = [](const Group& group, bool compares) {
    Model model({10, 3000, 5});
    std::vector<float> moved(3000);
    DistributedDataParallel ddp{model, group};
    ddp.backward([](Ready ready) { all_ready(ready, 3); });
    model.list[1].value = dtrain::tensor_view(moved.data(), {3000});
    model.values[1][7] = static_cast<float>(group.rank());  // as what lies there next
    if (compares) ddp.compare_values();
  };
  expect_ends(2, {"the value of parameter 1 'layer1' is at another address"},
              [&](const Group& group) { train(group, true); });
  run_well(2, [&](const Group& group) { train(group, false); });
  CHECK(captured.text().find("differed") == std::string::npos);
}

TEST_CASE("a rank that compares values learns that another one has ended its wrapper") {
  const CheckValues every("1");
  for (const int ranks : {2, 4}) {
    for (const int longest : {0, 1}) {
      CAPTURE(ranks);
      CAPTURE(longest);
      const std::vector<RankEnd> ends = run_groups<Policy>(
          ranks, [longest](const Group& group) { train_apart(group, group.rank() == longest ? 2 : 1, 1); });
      CHECK_CONTAINS(ends[static_cast<std::size_t>(longest)].text, "after 1 step rank ",
                     "compares values, and the DistributedDataParallel of rank", "has ended");
    }
  }
}

TEST_CASE("DTRAIN_CHECK_VALUES=0 compares nothing at a wrapper's end") {
  const CheckValues none("0");
  CapturedStderr captured;
  run_well(2, [&](const Group& group) { train_apart(group, 4, 2); });
  CHECK(captured.text().find("differed") == std::string::npos);
}

TEST_CASE("a program discards passes under no_sync, between steps") {
  run_well(2, [&](const Group& group) {
    Model model({10});
    DistributedDataParallel ddp{model, group};
    const auto pass = [&](Ready ready) { fill_gradients(model, ready, 2.0F); };
    {
      const auto held = ddp.no_sync(Adds::wrapper);
      ddp.backward(pass);
    }
    ddp.discard_accumulated();
    ddp.backward(pass);
    CHECK(model.gradients[0][0] == 2.0F);
    auto step = ddp.begin();
    CHECK_ERROR(ddp.discard_accumulated(), Errc::invalid_argument, "discard_accumulated() came while a step was");
    pass(step.ready());
    step.finish();
  });
}

TEST_CASE("a job of which the environment says so ends at the first step after which values differ") {
  const CheckValues every("2");
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    expect_ends(ranks, {"after 2 steps the values of parameter 1 'layer1' differ: rank 1 has other values than"},
                [](const Group& group) { train_apart(group, 6, 1); });
  }
  run_well(1, [](const Group& group) { train_apart(group, 6, 1); });
}

TEST_CASE("a wrapper that ends says once that its ranks have trained apart, and nothing otherwise") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    for (const bool apart : {false, true}) {
      CapturedStderr captured;
      run_well(ranks, [&](const Group& group) { train_apart(group, apart ? 4 : 1, 2); });
      const std::string warning =
          "the ranks' values of the model differed when its DistributedDataParallel ended: "
          "rank 1 has other values than rank";
      const std::string text = captured.text();
      CHECK((text.find(warning) != std::string::npos) == (apart && ranks > 1));
      CHECK(text.find(warning) == text.rfind(warning));
    }
  }
}

TEST_CASE(
    "a wrapper that ends says which option of their samplers the ranks have given differently, and on which ranks") {
  using Options = std::vector<dtrain::SamplerOptions>;
  const dtrain::SamplerOptions usual{.dataset_size = 60, .global_batch = 12, .seed = 1};
  const auto with = [&](auto change) {
    dtrain::SamplerOptions options = usual;
    change(options);
    return options;
  };
  using Change = void (*)(dtrain::SamplerOptions&);
  const std::tuple<Change, const char*, const char*> faults[] = {
      {[](dtrain::SamplerOptions& options) { options.seed = 2; }, "seed=1", "seed=2"},
      {[](dtrain::SamplerOptions& options) { options.dataset_size = 61; }, "dataset_size=60", "dataset_size=61"},
      {[](dtrain::SamplerOptions& options) { options.global_batch = 24; }, "global_batch=12", "global_batch=24"},
      {[](dtrain::SamplerOptions& options) { options.shuffle = false; }, "shuffle=true", "shuffle=false"},
      {[](dtrain::SamplerOptions& options) { options.drop_last = true; }, "drop_last=false", "drop_last=true"}};
  for (const auto& [change, common, other] : faults) {
    for (const int ranks : {2, 4}) {
      const std::string expected = std::string("the DistributedSamplers of the ranks differ: ") + common + " on " +
                                   (ranks == 2 ? "rank 0" : "ranks 0, 2 and 3") + ", " + other + " on rank 1";
      CAPTURE(expected);
      const dtrain::SamplerOptions fault = with(change);
      const std::string text = log_of_samplers(ranks, [&](int rank) {
        return Options{usual, rank == 1 ? fault : usual};
      });
      CHECK(text.find("the DistributedSamplers") == std::string::npos);  // rank 1 has made one more than others
      const std::string logged = log_of_samplers(ranks, [&](int rank) { return Options{rank == 1 ? fault : usual}; });
      CHECK_CONTAINS(logged, expected);
      CHECK(logged.find("the DistributedSamplers") == logged.rfind("the DistributedSamplers"));
    }
  }
  const CheckValues none("0");
  CHECK(log_of_samplers(2, [&](int rank) {
          return Options{with([&](dtrain::SamplerOptions& options) { options.seed = static_cast<unsigned>(rank); })};
        }) == "");
}

TEST_CASE("samplers that differ are named by the first step, while the training goes on") {
  for (const int ranks : {2, 4}) {
    CapturedStderr captured;
    run_well(ranks, [&](const Group& group) {
      Model model({10});
      DistributedDataParallel ddp{model, group};
      const std::size_t global_batch = group.rank() == 1 ? 24 : 12;
      const dtrain::DistributedSampler sampler{group, {.dataset_size = 60, .global_batch = global_batch}};
      ddp.backward([&](Ready ready) { fill_gradients(model, ready, 1.0F); });
      if (group.rank() == 0) {
        CHECK(support::holds_soon([&] {
          return support::contains(captured.text(), "global_batch=12 on rank") &&
                 support::contains(captured.text(), "global_batch=24 on rank 1; give all ranks the same settings");
        }));
      }
      group.barrier();
      ddp.backward([&](Ready ready) { fill_gradients(model, ready, 1.0F); });
    });
    const std::string text = captured.text();
    CHECK(text.find("the DistributedSamplers") == text.rfind("the DistributedSamplers"));
  }
}

TEST_CASE("ranks whose samplers are alike, or that make none, are no fault, and nobody waits for them") {
  using Options = std::vector<dtrain::SamplerOptions>;
  const dtrain::SamplerOptions usual{.dataset_size = 60, .global_batch = 12};
  const dtrain::SamplerOptions other{.dataset_size = 30, .global_batch = 12};
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    CHECK(log_of_samplers(ranks, [&](int) { return Options{usual, other, usual}; }) == "");
    CHECK(log_of_samplers(ranks, [&](int rank) { return rank == 0 ? Options{usual} : Options{}; }) == "");
    CHECK(log_of_samplers(ranks, [&](int rank) { return rank == 0 ? Options{usual, other} : Options{usual}; }) == "");
  }
}

TEST_CASE("compare_values() ends the job of ranks whose samplers differ") {
  for (const int ranks : {2, 4}) {
    const std::vector<std::string> parts{"after 0 steps the DistributedSamplers of the ranks differ: seed=7 on rank",
                                         "seed=8 on rank 1; give all ranks the same settings"};
    expect_ends(ranks, parts, [](const Group& group) {
      Model model({10});
      DistributedDataParallel ddp{model, group};
      const std::uint64_t seed = group.rank() == 1 ? 8 : 7;
      const dtrain::DistributedSampler sampler{group, {.dataset_size = 60, .global_batch = 12, .seed = seed}};
      ddp.compare_values();
    });
  }
}

TEST_CASE("a wrapper that ends warns once, on rank 0, if no value has changed in its steps") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    const auto log_of = [&](int steps, float change) {
      CapturedStderr captured;
      run_well(ranks, [&](const Group& group) { train_by(group, steps, change); });
      return captured.text();
    };
    const std::string warned = log_of(10, 0);
    CHECK_CONTAINS(warned, "no value of the model has changed in 10 steps: call the optimizer's step",
                   "call ready(i) when gradient i is written (DdpOptions::check_ready = true finds where not)");
    CHECK(warned.find("no value") == warned.rfind("no value"));
    CHECK(log_of(9, 0) == "");
    CHECK(log_of(10, 1) == "");
    const CheckValues none("0");
    CHECK(log_of(10, 0) == "");
  }
}

TEST_CASE("the values with which the ranks begin are rank 0's") {
  CapturedStderr captured;
  run_well(2, [](const Group& group) {
    Model model({10});
    model.values[0][3] = static_cast<float>(group.rank());
    DistributedDataParallel ddp{model, group};
    for (int step = 0; step < 10; ++step)
      ddp.backward([](Ready ready) { ready(0); });
  });
  CHECK_CONTAINS(captured.text(), "no value of the model has changed in 10 steps");
}

TEST_CASE("a wrapper without steps, one that an exception ends and one of local steps say nothing") {
  CapturedStderr captured;
  run_well(2, [](const Group& group) {
    Model model({10});
    { DistributedDataParallel ddp{model, group}; }
    dtrain::hooks::LocalSgd local{{.every = 8}};
    DistributedDataParallel ddp{model, group, {}, std::ref(local)};
    ddp.backward([](Ready ready) { ready(0); });
    model.values[0][0] = static_cast<float>(group.rank());
  });
  run_groups<Policy>(2, [](const Group& group) {
    Model model({10});
    DistributedDataParallel ddp{model, group};
    ddp.backward([](Ready ready) { ready(0); });
    model.values[0][0] = static_cast<float>(group.rank());
    throw std::runtime_error("the end");
  });
  CHECK(captured.text().find("differed") == std::string::npos);
}

TEST_CASE("a rank that leaves does not wait for wrappers that end on other ranks later") {
  std::atomic<bool> has_left{false};
  run_well(2, [&](const Group& group) {
    Model model({10});
    {
      DistributedDataParallel ddp{model, group};
      ddp.backward([](Ready ready) { ready(0); });
      if (group.rank() == 1) CHECK(support::holds_soon([&] { return has_left.load(); }));
    }
    if (group.rank() == 1) return;
    const auto begin = Deadline::Clock::now();
    group.leave();
    CHECK(Deadline::Clock::now() - begin < std::chrono::seconds(10));  // a timeout of the store is 20 s
    has_left = true;
  });
}
