// UnevenInputs: ranks with different numbers of steps.

#include "unit/public_interface/prelude.hpp"

using dtrain::UnevenInputs;

namespace uneven_inputs_test {

/// Gradients of rank `rank` in step `step`, both from 0.
float gradient(int rank, int step) {
  return static_cast<float>(1 + rank + 10 * step);
}

/// Adds each step's average to the value, on each rank; `steps` of each rank have data.
template <class M>
void train(const Group& group, const std::vector<int>& steps, const std::function<void(const Group&, int)>& at_step) {
  M model({5, 3000});
  DistributedDataParallel ddp{model, group, {.bucket_bytes = 1000}};
  const auto update = [&] { descend(model, -1.0F); };
  const int own = steps[static_cast<std::size_t>(group.rank())];
  for (int epoch = 0; epoch < 2; ++epoch) {
    UnevenInputs inputs{group};
    for (int step = 0; step < own; ++step) {
      inputs.begin_step();
      ddp.backward([&](Ready ready) { fill_gradients(model, ready, gradient(group.rank(), step)); });
      update();
      at_step(group, step);
    }
    int without_data = 0;
    inputs.finish([&] {
      ddp.step_without_data();
      update();
      ++without_data;
    });
    CHECK(own + without_data == *std::max_element(steps.begin(), steps.end()));
    CHECK_ERROR(inputs.begin_step(), Errc::invalid_argument, "begin_step() of an UnevenInputs was called after");
    CHECK_ERROR(inputs.finish([] {}), Errc::invalid_argument, "make another one");
  }
  float expected = 0;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    for (int step = 0; step < steps[static_cast<std::size_t>(rank)]; ++step)
      expected += 2 * gradient(rank, step) / static_cast<float>(group.world_size());
  }
  for (const std::vector<float>& values : model.values) {
    for (const float value : values)
      REQUIRE(value == doctest::Approx(expected));
  }
}

TEST_CASE("a rank without data makes steps without data until all ranks have ended") {
  for (const std::vector<int>& steps :
       std::vector<std::vector<int>>{{4}, {3, 3}, {2, 5, 3}, {0, 2}, {7, 0, 7}, {1, 2, 3, 4}}) {
    run_well(static_cast<int>(steps.size()), [&](const Group& group) {
      train<Model>(group, steps, [](const Group&, int) {});
      train<BindingModel>(group, steps, [](const Group&, int) {});
    });
  }
}

TEST_CASE("while every rank has data, no step has a message, and none of the keys stays") {
  run_well(2, [](const Group& group) {
    train<Model>(group, {3, 3}, [](const Group& of, int step) {
      const auto store = of.store();
      if (step < 2) {
        CHECK(!store.try_get("dtrain/uneven/1/step/1").wait());
        CHECK(!store.try_get("dtrain/uneven/2/step/1").wait());
      }
    });
    group.barrier();
    for (const char* const key : {"ended", "first", "most", "step/1", "step/3", "step/4"}) {
      CHECK(!group.store().try_get(std::string("dtrain/uneven/1/") + key).wait());
      CHECK(!group.store().try_get(std::string("dtrain/uneven/2/") + key).wait());
    }
    group.barrier();
  });
}

TEST_CASE("a rank that ends while another is many steps ahead makes all of these steps") {
  run_well(2, [](const Group& group) {
    constexpr int ahead = 1500;  // more than the keys that are kept
    UnevenInputs inputs{group};
    if (group.rank() == 0) {
      for (int step = 0; step < ahead; ++step)
        inputs.begin_step();  // of a step that waits for no other rank
      group.store().set("ahead", "").wait();
      group.store().get("dtrain/uneven/1/ended").wait();  // a rank with fewer steps ends first
    } else {
      group.store().get("ahead").wait();
    }
    int without_data = 0;
    inputs.finish([&] { ++without_data; });
    CHECK(without_data == (group.rank() == 0 ? 0 : ahead));
    group.barrier();
    for (const char* const key : {"ended", "first", "most", "step/1", "step/400", "step/1500", "step/1501"})
      CHECK(!group.store().try_get(std::string("dtrain/uneven/1/") + key).wait());
    group.barrier();
  });
}

TEST_CASE("a rank without data erases the key of a step once it is many steps further") {
  run_well(2, [](const Group& group) {
    const auto store = group.store().with_prefix("dtrain/uneven/1/");
    UnevenInputs inputs{group};
    if (group.rank() == 0) {
      inputs.begin_step();
      store.get("step/1").wait();  // this rank knows that the other one has ended
      for (int step = 1; step < 1300; ++step)
        inputs.begin_step();
    }
    int without_data = 0;
    inputs.finish([&] { ++without_data; });
    CHECK(without_data == (group.rank() == 0 ? 0 : 1300));
    group.barrier();
    for (const char* const key : {"step/2", "step/100", "step/276", "step/277", "step/1300"})
      CHECK(!store.try_get(key).wait());
    group.barrier();
  });
}

/// Ranks end in the order of their numbers. Their hosts do not wait for other ranks' steps, as on a GPU.
void end_in_order(const std::vector<int>& steps) {
  run_well(static_cast<int>(steps.size()), [&](const Group& group) {
    const int own = steps[static_cast<std::size_t>(group.rank())];
    const auto store = group.store().with_prefix("dtrain/uneven/1/");
    UnevenInputs inputs{group};
    for (int step = 0; step < own; ++step)
      inputs.begin_step();
    if (group.rank() > 0) store.get("first").wait();
    while (group.rank() > 1 && store.get("ended").wait() != std::to_string(group.rank()))
      std::this_thread::yield();
    int without_data = 0;
    inputs.finish([&] { ++without_data; });
    CHECK(own + without_data == *std::max_element(steps.begin(), steps.end()));
    group.barrier();
    for (const char* const key : {"ended", "first", "most", "step/10", "step/11", "step/12", "step/20", "step/21"})
      CHECK(!store.try_get(key).wait());
    group.barrier();
  });
}

TEST_CASE("ranks that have made fewer steps than the first one to end make the steps of that rank, too") {
  for (const std::vector<int>& steps :
       std::vector<std::vector<int>>{{11, 10}, {1500, 0}, {11, 10, 20}, {11, 20, 10}, {20, 11, 10}, {3, 12, 1, 12}}) {
    CAPTURE(steps.front());
    CAPTURE(steps.size());
    end_in_order(steps);
  }
}

TEST_CASE("a rank's number of steps is in the store before the rank counts as ended") {
  run_well(2, [](const Group& group) {
    for (int round = 1; round <= 100; ++round) {
      const auto store = group.store().with_prefix("dtrain/uneven/" + std::to_string(round) + "/");
      UnevenInputs inputs{group};
      if (group.rank() == 0) {
        inputs.begin_step();
      } else {
        store.get("ended").wait();
        CHECK(store.try_get("most").wait() == "1");
      }
      inputs.finish([] {});
    }
  });
}

TEST_CASE("a rank that has ended begins what it has enqueued, for which another one may wait before its next step") {
  run_well(2, [](const Group& group) {
    const auto wait = [&] { wait_for(group.stream(), dtrain::Deadline::after(group.timeout())); };
    UnevenInputs inputs{group};
    std::vector<float> sum{1};
    group.all_reduce(sum, ReduceOp::sum, group.stream());
    if (group.rank() == 1) {
      wait();
      inputs.begin_step();
    }
    int without_data = 0;
    inputs.finish([&] { ++without_data; });
    CHECK(without_data == 1 - group.rank());
    wait();
    CHECK(sum[0] == 2);
  });
}

TEST_CASE("a step without data is refused with hooks::LocalSgd") {
  run_well(2, [](const Group& group) {
    Model model({3});
    dtrain::hooks::LocalSgd local{{.every = 4}};
    DistributedDataParallel ddp{model, group, {}, std::ref(local)};
    CHECK_ERROR(ddp.step_without_data(), Errc::unsupported, "hooks::LocalSgd, whose local steps exchange nothing");
  });
}

TEST_CASE("a sharded optimizer makes steps without data, and none under no_sync()") {
  run_well(3, [](const Group& group) {
    Model uneven({300});
    Model even({300});
    DistributedDataParallel ddp{uneven, group};
    DistributedDataParallel all{even, group};
    ShardedOptimizer optimizer{ddp, dtrain::optimizers::Adam{.rate = 0.1F}};
    ShardedOptimizer reference{all, dtrain::optimizers::Adam{.rate = 0.1F}};
    const auto pass = [](Model& model, float value) {
      return [&model, value](Ready ready) { fill_gradients(model, ready, value); };
    };
    const auto step_value = [&group](int step) { return static_cast<float>(group.rank() + 1 + step); };
    UnevenInputs inputs{group};
    for (int step = 0; step <= group.rank(); ++step) {
      inputs.begin_step();
      ddp.backward(pass(uneven, step_value(step)), optimizer);
    }
    inputs.finish([&] { ddp.step_without_data(optimizer); });
    for (int step = 0; step < 3; ++step)
      all.backward(pass(even, step <= group.rank() ? step_value(step) : 0), reference);
    CHECK(uneven.values == even.values);

    const auto held = ddp.no_sync();
    CHECK_ERROR(ddp.step_without_data(optimizer), Errc::invalid_argument, "under no_sync()");
  });
}

}  // namespace uneven_inputs_test
