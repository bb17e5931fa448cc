// A step's work waits in its stream's queue while ready() returns, whatever reduces the buckets: ready() runs none.

#include "unit/public_interface/prelude.hpp"

using dtrain::optimizers::AdamW;
using support::holds_soon;

namespace work_items_test {

/// More than a queue holds at first.
constexpr std::size_t buckets = 300;
constexpr dtrain::DdpOptions options{.bucket_bytes = 4,
                                     .first_bucket_bytes = 4,
                                     .reorder_gradients = false,
                                     .progress = dtrain::stream::host::Progress::caller};

/// Other ranks have no gradient until rank 0 has returned from all its calls of ready().
/// @param train `train(group, model, pass)` runs one step with `pass(ready)`
template <class Train>
void expect_ready_waits_for_nobody(Train train) {
  std::atomic<bool> all_ready{false};
  run_well(2, [&](const Group& group) {
    Model model(std::vector<std::size_t>(buckets, 64));
    for (dtrain::Parameter& parameter : model.list)
      parameter.value.shape = parameter.gradient.shape = {8, 8};
    train(group, model, [&](Ready ready) {
      CHECK((group.rank() == 0 || holds_soon([&] { return all_ready.load(); })));
      front_test::all_ready(ready, buckets);
      if (group.rank() == 0) all_ready = true;
    });
  });
}

/// @param make_hook for each rank
template <class MakeHook>
void expect_so_with(MakeHook make_hook) {
  expect_ready_waits_for_nobody([&](const Group& group, Model& model, auto pass) {
    DistributedDataParallel ddp{model, group, options, make_hook()};
    REQUIRE(ddp.plan().buckets.size() == buckets);
    ddp.backward(pass, {.measure_norm = true});
  });
}

/// Enqueues work that does nothing.
struct Enqueuing {
  template <class C>
  void reduce(const dtrain::GradientBucket<C>& bucket) {
    for (int i = 1; i < items; ++i)
      bucket.compress([]() noexcept {});
    bucket.channel.enqueue(dtrain::backend::AllReduce{bucket.values, bucket.values, bucket.op}, bucket.stream);
  }
  int items;
};

struct Counting : Enqueuing {
  std::uint64_t items_per_bucket(int ranks) const { return static_cast<std::uint64_t>(20 * ranks); }
};

/// An all-reduce for each gradient. It knows how many a bucket has once it knows the plan.
struct OneByOne {
  template <class C>
  void plan(C&, const dtrain::ddp::BucketPlan& plan, dtrain::Deadline) {
    for (const auto& bucket : plan.buckets)
      most = std::max<std::uint64_t>(most, bucket.parameters.size());
  }
  std::uint64_t items_per_bucket(int) const { return most; }

  template <class C>
  void reduce(const dtrain::GradientBucket<C>& bucket) {
    for (const auto& gradient : bucket.gradients) {
      const dtrain::BufferView values = gradient.view.flat();
      bucket.channel.enqueue(dtrain::backend::AllReduce{values, values, bucket.op}, bucket.stream);
    }
  }

  std::uint64_t most = 0;
};

}  // namespace work_items_test

using namespace work_items_test;

TEST_CASE("ready() returns while no other rank has a gradient: steps that all-reduce") {
  for (const bool measures : {false, true}) {
    expect_ready_waits_for_nobody([&](const Group& group, Model& model, auto pass) {
      DistributedDataParallel ddp{model, group, options};
      ddp.backward(pass, {.measure_norm = measures});
    });
  }
}

TEST_CASE("the same with each hook") {
  namespace hooks = dtrain::hooks;
  expect_so_with([] { return hooks::Cast<dtrain::bfloat16>{{.error_feedback = hooks::every_parameter}}; });
  expect_so_with([] { return hooks::PowerSgd(); });
  expect_so_with([] { return hooks::TopK{{.fraction = 0.5}}; });
  expect_so_with([] { return Enqueuing{16}; });
  expect_so_with([] { return Counting{{40}}; });
}

TEST_CASE("the same with a sharded optimizer that has the memory of all gradients") {
  for (const bool frees : {false, true}) {
    expect_ready_waits_for_nobody([&](const Group& group, Model& model, auto pass) {
      DistributedDataParallel ddp{model, group, options};
      ShardedOptimizer optimizer{ddp, AdamW{}, {.early_update = frees}};
      ddp.backward(pass, optimizer);
    });
  }
}

TEST_CASE("a hook may say how many work items a bucket takes when it knows the buckets, up to a bound") {
  run_well(2, [](const Group& group) {
    Model model(std::vector<std::size_t>(40, 3));
    for (float& value : model.gradients[7])
      value = static_cast<float>(2 * group.rank());
    DistributedDataParallel ddp{model, group, {.reorder_gradients = false}, OneByOne{}};
    REQUIRE(ddp.plan().buckets.front().parameters.size() > dtrain::ddp::default_hook_items);
    ddp.backward([](Ready ready) { all_ready(ready, 40); });
    CHECK(model.gradients[7] == std::vector<float>(3, 1));
    struct Endless : Enqueuing {
      std::int64_t items_per_bucket(int) const { return -1; }
    };
    CHECK_ERROR((DistributedDataParallel{model, group, options, Endless{{1}}}), Errc::limit,
                "returned 18446744073709551615, but a stream has room for 4096 work items");
  });
}

TEST_CASE("a hook that enqueues more than it said is refused, with both numbers and what to do") {
  for (const bool says : {false, true}) {
    const std::vector<std::string> parts{says ? "enqueued 41 work items for bucket 0, which has room for 40"
                                              : "enqueued 17 work items for bucket 0, which has room for 16",
                                         "let its member items_per_bucket(ranks) return the largest number"};
    expect_ends(2, parts, [&](const Group& group) {
      Model model({5, 7});
      const auto step = [&](auto hook) {
        DistributedDataParallel ddp{model, group, options, std::move(hook)};
        ddp.backward([](Ready ready) { all_ready(ready, 2); });
      };
      if (says) {
        step(Counting{{41}});
      } else {
        step(Enqueuing{17});
      }
    });
  }
}
