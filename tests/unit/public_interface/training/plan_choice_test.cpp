// DdpOptions::plan: buckets whose sizes are measured give the same sums, are the same on all ranks, and are saved.

#include "unit/public_interface/prelude.hpp"

using dtrain::PlanChoice;

namespace plan_choice_test {

const DdpOptions measured{.plan = PlanChoice::measured()};
constexpr int all_steps = 32;  ///< three more than are measured

/// 40 gradients of 4 KiB.
std::vector<std::size_t> sizes() {
  return std::vector<std::size_t>(40, 1024);
}

/// The first and the last element of each gradient of a rank, in a step.
float value(int step, int rank, std::size_t i) {
  return static_cast<float>(step % 7 + 2 * rank) + static_cast<float>(i);
}

template <class Ddp, class AnyModel>
void run_step(Ddp& ddp, AnyModel& model, int step, int rank, std::size_t left_out = ~std::size_t{0}) {
  ddp.backward([&](Ready ready) {
    for (std::size_t i = model.list.size(); i-- > 0;) {
      const auto gradient = model.list[i].gradient.template as<float>();
      std::fill(gradient.begin(), gradient.end(), value(step, rank, i));
      if (i != left_out) ready(i);
    }
  });
}

/// How many elements are not the mean of two ranks' values.
template <class AnyModel>
int wrong_means(const AnyModel& model, int step, std::size_t left_out = ~std::size_t{0}) {
  int wrong = 0;
  for (std::size_t i = 0; i < model.list.size(); ++i) {
    const float mean = i == left_out ? 0 : (value(step, 0, i) + value(step, 1, i)) / 2;
    for (const float element : model.list[i].gradient.template as<float>())
      wrong += element == mean ? 0 : 1;
  }
  return wrong;
}

/// The bucket of each parameter in each step, of each rank.
struct Plans {
  std::array<std::vector<std::vector<std::size_t>>, 2> of_ranks;
  template <class Ddp>
  void add(const Ddp& ddp) {
    of_ranks[static_cast<std::size_t>(ddp.group().rank())].push_back(ddp.plan().bucket_of);
  }
  bool are_equal() const { return of_ranks[0] == of_ranks[1]; }
};

}  // namespace plan_choice_test

using namespace plan_choice_test;

TEST_CASE_TEMPLATE("while the sizes of buckets are measured, every step has the right sums and one plan on all ranks",
                   AnyModel, Model, BindingModel) {
  for (const bool reorders : {true, false}) {
    Plans plans;
    run_well(2, [&](const Group& group) {
      AnyModel model(sizes());
      DistributedDataParallel ddp{model, group, {.reorder_gradients = reorders, .plan = PlanChoice::measured()}};
      for (int step = 0; step < all_steps; ++step) {
        run_step(ddp, model, step, group.rank());
        CHECK(wrong_means(model, step) == 0);
        plans.add(ddp);
      }
      CHECK(dtrain::ddp::DriverAccess::of(ddp).reducer->planner()->is_settled());
    });
    CHECK(plans.are_equal());
    CHECK(plans.of_ranks[0].size() == all_steps);
    CHECK(plans.of_ranks[0][0] != plans.of_ranks[0][1]);  // step 3 measures with other sizes
    CHECK(plans.of_ranks[0][28] == plans.of_ranks[0].back());
  }
}

TEST_CASE("bound gradients of several types move with what they hold when the plan changes") {
  run_well(2, [&](const Group& group) {
    BindingModel model(sizes());
    std::vector<dtrain::bfloat16> narrow(40 * 512);
    for (std::size_t i = 0; i < 40; i += 2) {
      const dtrain::TensorView view = dtrain::tensor_view(narrow.data() + 512 * i, {512});
      model.list[i].value = view;
      model.list[i].gradient = view;
    }
    DistributedDataParallel ddp{model, group, measured};
    for (int step = 0; step < all_steps; ++step) {
      ddp.backward([&](Ready ready) {
        for (std::size_t i = 40; i-- > 0;) {
          const auto number = static_cast<float>(step % 4 + 2 * group.rank());
          if (i % 2 == 0) {
            for (auto& element : model.list[i].gradient.as<dtrain::bfloat16>())
              element = dtrain::bfloat16(number);
          } else {
            model.write(i, number);
          }
          ready(i);
        }
      });
      for (std::size_t i = 0; i < 40; ++i) {
        const auto mean = static_cast<float>(step % 4 + 1);
        if (i % 2 == 0) {
          CHECK(std::ranges::all_of(model.list[i].gradient.as<dtrain::bfloat16>(),
                                    [&](bfloat16 element) { return static_cast<float>(element) == mean; }));
        } else {
          CHECK(model.holds(i, mean));
        }
      }
    }
  });
}

TEST_CASE("unused parameters and a gradient hook go together with a measured plan") {
  run_well(2, [&](const Group& group) {
    Model model(sizes());
    DistributedDataParallel ddp{model, group, {.plan = PlanChoice::measured(), .allow_unused_parameters = true}};
    Model hooked(sizes());
    DistributedDataParallel with_hook{hooked, group, measured, dtrain::hooks::Cast<dtrain::bfloat16>()};
    for (int step = 0; step < all_steps; ++step) {
      run_step(ddp, model, step, group.rank(), 11);
      CHECK(wrong_means(model, step, 11) == 0);
      run_step(with_hook, hooked, step, group.rank());
      CHECK(wrong_means(hooked, step) == 0);  // small numbers, which bf16 has
    }
  });
}

TEST_CASE("passes under no_sync() are no steps: nothing is measured, and the plan does not change") {
  run_well(2, [&](const Group& group) {
    Model model(sizes());
    DistributedDataParallel ddp{model, group, measured};
    run_step(ddp, model, 0, group.rank());
    const std::vector<std::size_t> before = ddp.plan().bucket_of;
    {
      const auto held = ddp.no_sync();
      for (int pass = 0; pass < all_steps; ++pass)
        run_step(ddp, model, pass, group.rank());
    }
    CHECK(ddp.plan().bucket_of == before);
    CHECK_FALSE(dtrain::ddp::DriverAccess::of(ddp).reducer->planner()->is_settled());
    run_step(ddp, model, 0, group.rank());
    CHECK(ddp.plan().bucket_of != before);
  });
}

TEST_CASE("once the plan is settled, a step allocates nothing, and ready times are no longer recorded") {
  run_well(2, [&](const Group& group) {
    Model model(sizes());
    DistributedDataParallel ddp{model, group, measured};
    for (int step = 0; step < all_steps; ++step)
      run_step(ddp, model, step, group.rank());
    const std::size_t before = support::allocations_of_this_thread;
    run_step(ddp, model, 0, group.rank());
    const std::size_t after = support::allocations_of_this_thread;
    CHECK(after == before);
    const auto records = ddp.records(static_cast<std::uint64_t>(all_steps) + 1);
    CHECK(!records.empty());
    for (const dtrain::ddp::StepRecord& record : records)
      CHECK(record.event != dtrain::ddp::StepEvent::ready);
  });
}

TEST_CASE("a checkpoint with the plan gives it to the next job, which measures nothing") {
  const support::TemporaryFile file;
  const auto state = [](Model& model, auto& ddp) {
    std::vector<dtrain::NamedTensor> tensors = dtrain::parameter_values(model.list);
    tensors.push_back(dtrain::plan_state(ddp));
    return tensors;
  };
  std::array<std::vector<std::size_t>, 2> plans;
  run_well(2, [&](const Group& group) {
    Model model(sizes());
    DistributedDataParallel ddp{model, group, measured};
    const std::vector<dtrain::NamedTensor> tensors = state(model, ddp);  // as programs do, before the training
    for (int step = 0; step < all_steps; ++step)
      run_step(ddp, model, step, group.rank());
    dtrain::save_checkpoint(group, file.path, tensors);
    plans[static_cast<std::size_t>(group.rank())] = ddp.plan().bucket_of;
  });
  run_well(2, [&](const Group& group) {
    Model model(sizes());
    DistributedDataParallel ddp{model, group, measured};
    CHECK(dtrain::load_checkpoint(group, file.path, state(model, ddp)));
    for (int step = 0; step < 4; ++step) {
      run_step(ddp, model, step, group.rank());
      CHECK(dtrain::ddp::DriverAccess::of(ddp).reducer->planner()->is_settled());
      CHECK(ddp.plan().bucket_of == plans[static_cast<std::size_t>(group.rank())]);
      CHECK(wrong_means(model, step) == 0);
    }
  });
  run_well(3, [&](const Group& group) {
    Model model(sizes());
    DistributedDataParallel ddp{model, group, measured};
    CHECK(dtrain::load_checkpoint(group, file.path, state(model, ddp)));
    run_step(ddp, model, 0, group.rank());
    CHECK_FALSE(dtrain::ddp::DriverAccess::of(ddp).reducer->planner()->is_settled());
  });
}

struct WithoutGradientMemory {
  float weights[4] = {};
  std::vector<dtrain::Parameter> parameters() {
    return {{"weights", dtrain::tensor_view(&weights[0], {4}), dtrain::tensor_view<float>(nullptr, {4})}};
  }
};

TEST_CASE("what a measured plan cannot go together with is refused in one sentence") {
  run_well(2, [&](const Group& group) {
    Model model(sizes());
    CHECK(sentence_of([&] {
            DistributedDataParallel ddp{model, group, {.deterministic = true, .plan = PlanChoice::measured()}};
          }) ==
          "DdpOptions::deterministic keeps the first bucket plan, which DdpOptions::plan is to change by "
          "measurements; set one of them");
    WithoutGradientMemory without;
    CHECK(sentence_of([&] {
            DistributedDataParallel ddp{without, group, measured};
          }) ==
          "DdpOptions::plan measures steps without a ShardedOptimizer, which gradients without memory need; set "
          "DdpOptions::bucket_bytes instead");
    DistributedDataParallel plain{model, group};
    CHECK(sentence_of([&] { dtrain::plan_state(plain); }) ==
          "plan_state() got a wrapper whose buckets are not measured; set DdpOptions::plan to PlanChoice::measured()");
    DistributedDataParallel ddp{model, group, measured};
    run_step(ddp, model, 0, group.rank());
    CHECK(sentence_of([&] {
            dtrain::ShardedOptimizer optimizer{ddp, dtrain::optimizers::Sgd{}};
          }) ==
          "a ShardedOptimizer keeps the buckets of its wrapper, but DdpOptions::plan still measures to change them; "
          "construct it after 33 steps, or the wrapper without DdpOptions::plan");
    for (int step = 1; step < all_steps; ++step)
      run_step(ddp, model, step, group.rank());
    dtrain::ShardedOptimizer optimizer{ddp, dtrain::optimizers::Sgd{.rate = 0.5F}};
    ddp.backward([&](Ready ready) { fill_gradients(model, ready, 1.0F); }, optimizer);
    CHECK(model.values[0][0] == -0.5F);
  });
}

TEST_CASE("ranks that do not all measure their plan are told") {
  for (const RankEnd& end : run_groups<Policy>(2, [&](const Group& group) {
         Model model(sizes());
         DistributedDataParallel ddp{model, group, group.rank() == 1 ? measured : DdpOptions{}};
       }))
    CHECK(end.text ==
          "ranks disagree: rank 1's DdpOptions::plan is measured, rank 0's is given; set it alike on all ranks");
}

TEST_CASE("a rank that fails while the others choose the plan ends them with its cause") {
  expect_ends(2, {"this rank has had enough"}, [&](const Group& group) {
    Model model(sizes());
    DistributedDataParallel ddp{model, group, measured};
    for (int step = 0; step < all_steps; ++step) {
      if (group.rank() == 1 && step == 3) throw std::runtime_error("this rank has had enough");
      run_step(ddp, model, step, group.rank());
    }
  });
}
