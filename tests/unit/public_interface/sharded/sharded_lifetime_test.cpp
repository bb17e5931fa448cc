// ShardedOptimizer: ranks that construct different ones, stages that there are not, values that share memory, and the
// end of the wrapper.

#include "unit/public_interface/prelude.hpp"

namespace sharded_lifetime_test {

/// Both ranks' ends where each constructs its own.
template <class R0, class R1>
std::string texts(R0 rule_0, const ShardedOptions& stage_0, R1 rule_1, const ShardedOptions& stage_1) {
  const std::vector<support::RankEnd> ends = support::run_groups<front_test::Policy>(2, [&](const Group& group) {
    Model model({10, 3000});
    DistributedDataParallel ddp{model, group};
    if (group.rank() == 0) {
      ShardedOptimizer optimizer{ddp, rule_0, stage_0};
    } else {
      ShardedOptimizer optimizer{ddp, rule_1, stage_1};
    }
  });
  CHECK_CONTAINS(ends[0].text, "rank 1 reduces gradients by a ShardedOptimizer of stage ");
  CHECK_CONTAINS(ends[1].text, ", rank 0 by a ShardedOptimizer of stage ",
                 "; give all ranks the same hook or ShardedOptimizer");
  return ends[0].text + "\n" + ends[1].text;
}

TEST_CASE("ranks that construct different sharded optimizers fail at once with a sentence that names both") {
  const optimizers::Sgd sgd;
  const std::string stage_1 = "a ShardedOptimizer of stage 1, whose rule has 0 state arrays";
  const std::string stage_2 = "a ShardedOptimizer of stage 2, whose rule has 0 state arrays";
  CHECK_CONTAINS(texts(sgd, {}, sgd, {.stage = 2}), stage_1, stage_2);
  CHECK_CONTAINS(texts(sgd, {.stage = 2}, sgd, {}), stage_1, stage_2);
  for (const bool frees : {false, true}) {
    CHECK_CONTAINS(texts(sgd, {.early_update = frees}, sgd, {.early_update = !frees}), stage_1,
                   "a ShardedOptimizer of stage 1, early_update, whose rule has 0 state arrays");
    CHECK_CONTAINS(texts(sgd, {.stage = 2, .early_update = frees}, sgd, {.stage = 2, .early_update = !frees}), stage_2,
                   "a ShardedOptimizer of stage 2, early_update, whose rule has 0 state arrays");
  }
  CHECK_CONTAINS(texts(sgd, {}, optimizers::AdamW{}, {}), "2 state arrays");
  CHECK_CONTAINS(texts(optimizers::AdamW{}, {}, optimizers::Lamb{}, {}), "and measures norms");
}

TEST_CASE("another stage than 1 and 2 is refused on every rank, with what to give") {
  run_well(2, [](const Group& group) {
    Model model({10, 3000});
    DistributedDataParallel ddp{model, group};
    for (const int stage : {0, 3, -1}) {
      const std::string sentence =
          "ShardedOptions::stage is " + std::to_string(stage) +
          "; give 1, which divides the optimizer's state, or 2, which also divides the gradients" +
          (stage == 3 ? "; dtrain does not divide the weights themselves" : "");
      CHECK_ERROR((ShardedOptimizer{ddp, optimizers::Sgd{}, {.stage = stage}}), Errc::invalid_argument, sentence);
    }
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}, {.stage = 2}};
    ddp.backward([&](Ready ready) { fill_gradients(model, ready, 1.0F); }, optimizer);
    CHECK(model.all_are(-1));
  });
}

TEST_CASE("parameters whose values share memory are refused, and train without a sharded optimizer") {
  run_well(2, [](const Group& group) {
    for (const std::size_t overlap : {std::size_t{1}, std::size_t{100}}) {
      Model model({100, 100, 0});
      std::vector<float> memory(200);
      model.list[0].value.data = reinterpret_cast<std::byte*>(memory.data());
      model.list[1].value.data = reinterpret_cast<std::byte*>(memory.data() + 100 - overlap);
      DistributedDataParallel ddp{model, group};
      for (const int stage : {1, 2}) {
        CHECK_THROWS_WITH_AS((ShardedOptimizer{ddp, optimizers::Sgd{}, {.stage = stage}}),
                             "the values of parameter 0 'layer0' and parameter 1 'layer1' share memory; list a tied "
                             "parameter once",
                             dtrain::Error);
      }
      run_step(ddp, model, [](std::size_t i, std::size_t) { return 1.0F + static_cast<float>(i); });
      CHECK(model.gradients[1][0] == 2);
    }
  });
}

using Wrapper = DistributedDataParallel<Model, front_test::Policy>;
template <class Rule>
using Sharded = Wrapper::Sharded<Rule>;

/// The weights after a step whose wrapper is destroyed before its optimizer, and what that says then.
int wrong_ends(const Group& group, const ShardedOptions& stage, const std::string& path) {
  int wrong = 0;
  Model model({10, 3000, 700});
  const auto pass = [&](Ready ready) { fill_gradients(model, ready, 1.0F); };
  auto ddp = std::make_unique<Wrapper>(model, group);
  auto optimizer = std::make_unique<Sharded<optimizers::Momentum>>(*ddp, optimizers::Momentum{.rate = 1}, stage);
  ddp->backward(pass, *optimizer);
  ddp.reset();
  wrong += model.all_are(-1) && optimizer->steps() == 1 ? 0 : 1;
  optimizer->wait();
  const std::vector<dtrain::NamedTensor> values = dtrain::parameter_values(model.list);
  dtrain::save_checkpoint(group, path, values, *optimizer);
  {
    DistributedDataParallel again{model, group};
    CHECK_ERROR(again.backward(pass, *optimizer), Errc::invalid_argument, "was constructed from is destroyed");
    ShardedOptimizer next{again, optimizers::Momentum{.rate = 1}, stage};
    wrong += dtrain::load_checkpoint(group, path, values, next) && next.steps() == 1 ? 0 : 1;
    optimizer.reset();
    again.backward(pass, next);
    next.wait();
  }
  return wrong + (model.all_are(-2.9F) ? 0 : 1);  // momentum 0.9 of the first step
}

TEST_CASE("a sharded optimizer that outlives its wrapper keeps its state, makes no step, and ends quietly") {
  for (const int ranks : {1, 3}) {
    const support::TemporaryDirectory files;
    run_well(ranks, [&](const Group& group) {
      for (const bool frees : {false, true}) {
        CHECK(wrong_ends(group, {.early_update = frees}, files.path + "/states") == 0);
        CHECK(wrong_ends(group, {.stage = 2, .early_update = frees}, files.path + "/gradients") == 0);
      }
    });
  }
}

/// An exception that leaves a step destroys the wrapper first, too.
struct Training {
  explicit Training(const Group& group) : model({10, 3000}), ddp(std::in_place, model, group) {}
  Model model;
  std::unique_ptr<Sharded<optimizers::Sgd>> optimizer;
  std::optional<Wrapper> ddp;
};

TEST_CASE("so does one whose wrapper is destroyed after a step that failed") {
  expect_ends(2, {"the loss is not a number"}, [](const Group& group) {
    Training training(group);
    training.optimizer =
        std::make_unique<Sharded<optimizers::Sgd>>(*training.ddp, optimizers::Sgd{}, ShardedOptions{.stage = 2});
    training.ddp->backward(
        [&](Ready ready) {
          ready(1);
          if (group.rank() == 1) throw std::runtime_error("the loss is not a number");
          ready(0);
        },
        *training.optimizer);
  });
}

}  // namespace sharded_lifetime_test
