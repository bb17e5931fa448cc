// Gradients that do not stay where they were when the model was wrapped, in jobs of several ranks.
#include "unit/public_interface/prelude.hpp"

namespace {

/// Says where its vectors are now.
struct MovableModel {
  std::vector<std::vector<float>> values{std::vector<float>(8), std::vector<float>(8)};
  std::vector<std::vector<float>> gradients{std::vector<float>(8), std::vector<float>(8)};

  std::vector<dtrain::Parameter> parameters() {
    std::vector<dtrain::Parameter> list;
    for (std::size_t i = 0; i < values.size(); ++i) {
      list.push_back({"layer" + std::to_string(i), dtrain::tensor_view(values[i].data(), {8}),
                      dtrain::tensor_view(gradients[i].data(), {8})});
    }
    return list;
  }
};

/// Its gradients are where they were bound, until it forgets one.
struct BoundMovableModel : MovableModel {
  std::vector<dtrain::TensorView> bound{2};

  std::vector<dtrain::Parameter> parameters() {
    std::vector<dtrain::Parameter> list = MovableModel::parameters();
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (bound[i].data != nullptr) list[i].gradient = bound[i];
    }
    return list;
  }
  void bind_gradient(std::size_t i, const dtrain::TensorView& view) { bound[i] = view; }
};

void announce_in_order(Ready ready) {
  ready(0);
  ready(1);
}

}  // namespace

TEST_CASE("a gradient that has moved on one rank is every rank's end, before its old memory is written to") {
  for (const bool in_the_pass : {false, true}) {
    CAPTURE(in_the_pass);
    std::vector<float> old_memory;  // kept, so that a write to it is seen and harms nobody
    const std::vector<RankEnd> ends = run_groups<Policy>(2, [&](const Group& group) {
      MovableModel model;
      DistributedDataParallel ddp{model, group};
      const auto move_one = [&] {
        old_memory = std::exchange(model.gradients[1], std::vector<float>(8));
        std::fill(old_memory.begin(), old_memory.end(), 7.0F);
      };
      for (int step = 1; step <= 3; ++step) {
        const bool moves = group.rank() == 1 && step == 2;
        if (moves && !in_the_pass) move_one();
        ddp.backward([&](Ready ready) {
          if (moves && in_the_pass) move_one();
          announce_in_order(ready);
        });
      }
    });
    const std::string sentence = "in step 2 the gradient of parameter 1 'layer1' is at another address than when";
    CHECK(ends[1].text.find(sentence) == 0);
    CHECK(ends[0].job_failed);
    CHECK_CONTAINS(ends[0].text, "rank 1", sentence);
    CHECK(old_memory == std::vector<float>(8, 7.0F));
  }
}

TEST_CASE("bound gradients stay bound, where the plan of the second step has moved them, or the job ends") {
  const std::vector<RankEnd> ends = run_groups<Policy>(2, [&](const Group& group) {
    BoundMovableModel model;
    DistributedDataParallel ddp{model, group, {.check_addresses = true}};
    const std::byte* const before = model.bound[0].data;
    for (int step = 1; step <= 5; ++step) {
      if (step == 5 && group.rank() == 0) model.bound[0].data = nullptr;  // as a model that sets a gradient to none
      ddp.backward(announce_in_order);
      if (step == 1 && model.bound[0].data == before) throw std::runtime_error("nothing has moved: this tests nothing");
    }
  });
  CHECK(ends[0].text.find("in step 5 the gradient of parameter 0 'layer0' is at another address than when") == 0);
  CHECK(ends[1].job_failed);
}

TEST_CASE("passes under no_sync read no gradients, and the step behind them checks") {
  const std::vector<RankEnd> ends = run_groups<Policy>(1, [&](const Group& group) {
    MovableModel model;
    DistributedDataParallel ddp{model, group};
    const std::vector<float> old_memory = std::exchange(model.gradients[0], std::vector<float>(8));
    {
      const auto held = ddp.no_sync();
      ddp.backward(announce_in_order);
    }
    ddp.backward(announce_in_order);
  });
  CHECK(ends[0].text.find("in step 1 the gradient of parameter 0 'layer0' is at another address") == 0);
}
