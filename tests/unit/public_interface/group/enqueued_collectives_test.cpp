// Collectives that are given a stream make progress by themselves; and who waits in the store lets other work go on.
// ctest: TIMEOUT 120

#include <functional>
#include <utility>

#include "support/threads_of_this_process.hpp"
#include "unit/public_interface/prelude.hpp"

namespace {

/// Every rank enqueues a collective; rank 0 then waits, without a call of dtrain, until the others have its result.
void expect_progress(int ranks, Progress progress, bool in_groups_own_stream) {
  std::atomic<int> done{0};
  const std::vector<dtrain::GroupOptions> options(static_cast<std::size_t>(ranks), {.progress = progress});
  run_well(
      ranks,
      [&](const Group& group) {
        const auto own = group.open_stream();
        std::vector<float> values{1};
        for (int round = 1; round <= 3; ++round) {
          const auto stream = in_groups_own_stream ? group.stream() : own.ref();
          const Group::Work work = group.all_reduce(values, stream);
          if (group.rank() == 0) CHECK(support::holds_soon([&] { return done >= round * (ranks - 1); }));
          work.wait();
          if (group.rank() != 0) ++done;
          group.barrier();
        }
        CHECK(values[0] == static_cast<float>(ranks * ranks * ranks));
      },
      support::patience_with_ranks, {}, options);
}

/// A model with a wrapper and an optimizer.
struct Trained {
  explicit Trained(const Group& group) : ddp(model, group), optimizer(ddp, optimizers::Sgd{}) {}

  Model model{{5}};
  DistributedDataParallel<Model, Policy> ddp;
  DistributedDataParallel<Model, Policy>::Sharded<optimizers::Sgd> optimizer;
};

/// On rank 1 the step of a wrapper stays open, with all its gradients enqueued, while it makes `call`; rank 0 waits for
/// those gradients first.
void expect_to_let_a_step_run(const std::string& name, const std::function<void(const Group&, Trained&)>& call) {
  CAPTURE(name);
  run_well(2, [&](const Group& group) {
    Model model({5});
    DistributedDataParallel ddp{model, group, {.reduce_op = ReduceOp::sum, .progress = Progress::caller}};
    Trained other(group);
    auto step = ddp.begin();
    model.gradients[0].assign(5, 1.0F);
    step.ready(0);
    if (group.rank() == 0) step.finish();
    call(group, other);
    if (group.rank() == 1) step.finish();
    CHECK(model.gradients[0] == std::vector<float>(5, 2.0F));
  });
}

}  // namespace

TEST_CASE("an enqueued collective runs while its rank waits elsewhere, with a thread and without one") {
  for (const int ranks : {2, 4}) {
    for (const Progress progress : {Progress::automatic, Progress::thread, Progress::caller}) {
      for (const bool in_groups_own_stream : {false, true}) {
        CAPTURE(ranks);
        CAPTURE(static_cast<int>(progress));
        CAPTURE(in_groups_own_stream);
        expect_progress(ranks, progress, in_groups_own_stream);
      }
    }
  }
}

TEST_CASE("ranks may make progress differently") {
  std::atomic<bool> done{false};
  run_well(2,
           [&](const Group& group) {
             const auto own = group.open_stream();
             std::vector<float> values{1};
             const Group::Work work = group.all_reduce(values, own.ref());
             if (group.rank() == 0) CHECK(support::holds_soon([&] { return done.load(); }));
             work.wait();
             done = true;
             CHECK(values[0] == 2);
           },
           support::patience_with_ranks, {}, {{.progress = Progress::caller}, {.progress = Progress::thread}});
}

TEST_CASE("blocking collectives and steps start no thread") {
  std::atomic<int> before{0};
  run_well(2, [&](const Group& group) {
    Model model({5});
    DistributedDataParallel ddp{model, group, {.progress = Progress::caller}};
    group.barrier();
    if (group.rank() == 0) before = support::threads_of_this_process();
    group.barrier();
    std::vector<float> values{1};
    for (int round = 0; round < 20; ++round) {
      group.all_reduce(values);
      run_step(ddp, model, [](std::size_t, std::size_t) { return 1.0F; });
      std::this_thread::sleep_for(2ms);
    }
    group.barrier();
    CHECK(support::threads_of_this_process() <= before);
    group.barrier();
  });
}

TEST_CASE("a rank that waits in the store lets the step of another wrapper run") {
  const TemporaryDirectory folder;
  expect_to_let_a_step_run("compare_values", [](const Group&, Trained& other) { other.ddp.compare_values(); });
  expect_to_let_a_step_run("summary",
                           [](const Group&, Trained& other) { CHECK_CONTAINS(other.ddp.summary(), "slowest rank"); });
  expect_to_let_a_step_run("a wrapper is made", [](const Group& group, Trained&) { const Trained another(group); });
  expect_to_let_a_step_run("save_checkpoint", [&](const Group& group, Trained& other) {
    const auto tensors = dtrain::ddp::parameter_values(other.model.parameters());
    dtrain::save_checkpoint(group, folder.path + "/plain", tensors);
    CHECK(dtrain::load_checkpoint(group, folder.path + "/plain", tensors));
  });
  expect_to_let_a_step_run("save_checkpoint of a ShardedOptimizer", [&](const Group& group, Trained& other) {
    const auto tensors = dtrain::ddp::parameter_values(other.model.parameters());
    dtrain::save_checkpoint(group, folder.path + "/sharded", tensors, other.optimizer);
    CHECK(dtrain::load_checkpoint(group, folder.path + "/sharded", tensors, other.optimizer));
  });
  expect_to_let_a_step_run("write_timeline", [&](const Group& group, Trained&) {
    dtrain::write_timeline(group, folder.path + "/timeline", {});
  });
  expect_to_let_a_step_run("a collective of the store", [](const Group& group, Trained&) {
    const std::string all = dtrain::group::handle_of(group)->gather(
        "test", "joining texts", [] { return std::string("a"); },
        [](const std::vector<std::string>& texts) { return texts[0] + texts[1]; });
    CHECK(all == "aa");
  });
}
