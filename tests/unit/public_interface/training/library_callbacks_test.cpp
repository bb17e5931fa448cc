// What libraries need that call the program: gradients that lie elsewhere in each step, sharded steps by begin(), and
// parameters that the first forward pass makes.
#include "unit/public_interface/prelude.hpp"

using namespace whole_optimizer;

namespace {

/// Gives each gradient in `scratch`, and overwrites it when ready() has returned. The last one comes in memory that is
/// freed.
void pass_in_scratch_memory(Ready ready, int step, int rank, std::vector<float>& scratch) {
  for (std::size_t i = sizes.size(); i-- > 0;) {
    const auto write = [&](std::vector<float>& memory) {
      for (std::size_t k = 0; k < sizes[i]; ++k)
        memory[k] = element(step, rank, i, k);
      ready(i, dtrain::tensor_view(memory.data(), {static_cast<std::int64_t>(sizes[i])}));
      std::fill(memory.begin(), memory.end(), 1e9F);
    };
    std::vector<float> freed(sizes[i]);
    write(i == 0 ? freed : scratch);
  }
}

/// The gradients of `Any` after steps in scratch memory, and those of a model that has its own.
template <class Any, class... Hook>
void check_scratch_memory(int ranks, Hook... hook) {
  run_well(ranks, [&](const Group& group) {
    Model expected(sizes);
    Any model(sizes);
    std::vector<float> scratch(4096);
    const DdpOptions options{.bucket_bytes = 3000};
    DistributedDataParallel reference{expected, group, options, Hook(hook)...};
    DistributedDataParallel ddp{model, group, options, Hook(hook)...};
    for (int step = 0; step < 4; ++step) {
      reference.backward(whole_optimizer::backward(expected, step, group.rank()));
      ddp.backward([&](Ready ready) { pass_in_scratch_memory(ready, step, group.rank(), scratch); });
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const auto reduced = model.list[i].gradient.template as<float>();
        CHECK(std::equal(reduced.begin(), reduced.end(), expected.gradients[i].begin()));
      }
    }
  });
}

/// Steps by begin(optimizer) of a model with memory for gradients or without it, beside the optimizer as a whole.
void check_begun_steps(int ranks, const ShardedOptions& stage) {
  run_well(ranks, [&](const Group& group) {
    const optimizers::AdamW rule{.rate = 0.01F};
    Model whole(sizes);
    Model sharded(sizes);
    fill_values(whole);
    fill_values(sharded);
    WholeOptimizer reference(rule);
    DistributedDataParallel expected{whole, group};
    DistributedDataParallel ddp{sharded, group, {.bucket_bytes = 3000}};
    ShardedOptimizer optimizer{ddp, rule, stage};
    std::vector<float> scratch(4096);
    for (int step = 0; step < 4; ++step) {
      expected.backward(whole_optimizer::backward(whole, step, group.rank()));
      reference.step(whole);
      auto begun = ddp.begin(optimizer);
      pass_in_scratch_memory(begun.ready(), step, group.rank(), scratch);
      begun.finish();
      CHECK(equal_bits(whole.values, sharded.values));
    }
    CHECK(optimizer.steps() == 4);
  });
}

}  // namespace

TEST_CASE("gradients may lie elsewhere in each step, and their memory is the program's again when ready returns") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    check_scratch_memory<Model>(ranks);
    check_scratch_memory<BindingModel>(ranks);
    check_scratch_memory<Model>(ranks, dtrain::hooks::Cast<bfloat16>{});
  }
}

TEST_CASE("a step itself takes gradients that lie elsewhere, and says what is wrong with them") {
  run_well(2, [&](const Group& group) {
    BindingModel model({2, 3});
    DistributedDataParallel ddp{model, group};
    auto step = ddp.begin();
    std::vector<float> gradient{1, 1, 1};
    CHECK_ERROR(step.ready(0, dtrain::tensor_view(gradient)), Errc::invalid_argument,
                "ready(0) for parameter 0 'layer0' came with f32 [3] on host, but the parameter's own is f32 [2]");
    step.ready(1, dtrain::tensor_view(gradient));
    step.ready(0, dtrain::tensor_view(gradient.data(), {2}));
    gradient.clear();
    step.finish();
    CHECK((model.holds(0, 1.0F) && model.holds(1, 1.0F)));
  });
}

TEST_CASE("a sharded step by begin() gives the weights of the whole optimizer, in both stages") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    check_begun_steps(ranks, {});
    check_begun_steps(ranks, {.stage = 2});
  }
}

TEST_CASE("a sharded step by begin() may be inspected, and is refused where backward() would refuse it") {
  run_well(2, [&](const Group& group) {
    Model model({10});
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}};
    model.gradients[0].assign(10, 1.0F);
    const auto inspected = [&](bool updates) {
      dtrain::StepOptions options{.inspect = [updates](dtrain::StepGradients& gradients) {
        CHECK(gradients.gradient_norm().norm > 3);  // the root of 10
        return updates;
      }};
      auto step = ddp.begin(optimizer, std::move(options));
      CHECK_ERROR(ddp.begin(optimizer), Errc::invalid_argument, "begin() came while a step was under way");
      model.gradients[0].assign(10, 1.0F);
      step.ready(0);
      CHECK(step.finish() == updates);
    };
    inspected(false);
    CHECK(model.values[0] == std::vector<float>(10, 0.0F));
    inspected(true);
    CHECK(model.values[0] == std::vector<float>(10, -1.0F));
    const auto held = ddp.no_sync();
    CHECK_ERROR(ddp.begin(optimizer), Errc::invalid_argument, "begin() got a ShardedOptimizer, but under no_sync()");
  });
}

TEST_CASE("a sharded step by begin() that is dropped ends every rank") {
  const std::vector<RankEnd> ends = run_groups<Policy>(2, [&](const Group& group) {
    Model model({10});
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}};
    auto step = ddp.begin(optimizer);
    if (group.rank() == 1) throw std::runtime_error("the library stopped");
    step.ready(0);
    step.finish();
  });
  CHECK(ends[1].text == "the library stopped");
  CHECK(ends[0].job_failed);
}

TEST_CASE("what lies before begin() counts as computing, because the backward pass may be there") {
  run_well(2, [&](const Group& group) {
    Model model({10});
    DistributedDataParallel ddp{model, group};
    ddp.backward([](Ready ready) { ready(0); });
    CHECK(ddp.summary().find("a step of 1: forward ") == 0);
    for (int step = 0; step < 2; ++step) {
      auto begun = ddp.begin();
      begun.ready(0);
      begun.finish();
    }
    CHECK(ddp.summary().find("a step of 3: computing ") == 0);
  });
}

TEST_CASE("a model whose parameters its first forward pass will make is refused on every rank, with what to do") {
  for (const int ranks : {1, 2, 4}) {
    const std::vector<std::string> parts{"all 2 parameters of the model have 0 elements",
                                         "run one forward pass before wrapping the model"};
    expect_ends(ranks, parts, [](const Group& group) {
      Model model({0, 0});
      DistributedDataParallel ddp{model, group};
    });
  }
}
