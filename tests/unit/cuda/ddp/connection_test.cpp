#include "dtrain/ddp/sharded/sharded_optimizer.hpp"
#include "unit/cuda/ddp/device_model.hpp"
#include "unit/cuda/prelude.hpp"

#if DTRAIN_EMULATED_CUDA

namespace {

template <bool in_caller>
using Policy = dtrain::Policy<dtrain::launch::PerProcess,
                              dtrain::backend::NcclWith<dtrain::backend::NcclOptions{.launches_in_caller = in_caller}>>;

/// A small and a large parameter, for which NCCL takes different algorithms.
struct Model : DeviceModel {
  explicit Model(float gradient) {
    for (const auto& [name, count] : {std::pair("small", 10U), std::pair("large", 100'000U)}) {
      add<float>(name, count, 0);
      prepare(list_.size() - 1, std::vector<float>(count, gradient));
    }
  }
};

/// A bucket of f32 whose size is between those of two of bf16.
struct TwoTypes : DeviceModel {
  TwoTypes() {
    add<bfloat16>("small", 4096, bfloat16(0.0F));
    add<float>("between", 10'240, 0.0F);
    add<bfloat16>("large", 102'400, bfloat16(0.0F));
    prepare(0, std::vector<bfloat16>(4096, bfloat16(1.0F)));
    prepare(1, std::vector<float>(10'240, 1.0F));
    prepare(2, std::vector<bfloat16>(102'400, bfloat16(1.0F)));
  }
};

/// One gradient of ones.
template <class T>
struct OneParameter : DeviceModel {
  explicit OneParameter(std::size_t count) {
    add<T>("p", count, T(0.0F));
    prepare(0, std::vector<T>(count, T(1.0F)));
  }
};

/// A program's own, with the collectives of a sharded step. @pre the number of elements is even
struct HalvesHook {
  template <class C>
  void connect(const dtrain::GradientBucket<C>& bucket) const {
    const BufferView& all = bucket.values;
    const std::size_t half = all.count / 2;
    const BufferView own = bucket.part(half * static_cast<std::size_t>(bucket.channel.rank()), half);
    bucket.channel.enqueue(ReduceScatter{all, own, ReduceOp::sum}, bucket.stream);
    bucket.channel.enqueue(AllGather{own, all}, bucket.stream);
  }
  template <class C>
  void reduce(const dtrain::GradientBucket<C>& bucket) const {
    connect(bucket);
  }
};

/// Rank 0 runs its first step with the hook to the end, then rank 1 does.
template <class T, class Hook>
void expect_hook_alone(std::size_t count, Hook hook, float expected) {
  const EmulatedDevices emulated(2);
  std::atomic<bool> has_ended{false};
  run_well<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    OneParameter<T> model(count);
    Hook own = hook;
    DistributedDataParallel ddp{model, group, {.reorder_gradients = false}, std::ref(own)};
    if (group.rank() == 1) CHECK(holds_soon([&] { return has_ended.load(); }));
    ddp.backward([&](Ready ready) { model.compute(0, ready); });
    has_ended = true;
    const std::vector<T> reduced = model.template gradient<T>(0);
    const auto is_expected = [&](T value) { return static_cast<float>(value) == expected; };
    CHECK(std::all_of(reduced.begin(), reduced.end(), is_expected));
    group.barrier();
  });
}

template <bool in_caller>
void expect_enqueued_alone() {
  const EmulatedDevices emulated(2);
  std::atomic<bool> has_launched{false};
  run_well<Policy<in_caller>>(2, [&](const dtrain::ProcessGroup<Policy<in_caller>>& group) {
    Model model(static_cast<float>(2 * group.rank()));
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 100, .first_bucket_bytes = 100}};
    if (group.rank() == 1) CHECK(holds_soon([&] { return has_launched.load(); }));
    ddp.backward([&](Ready ready) {
      for (const std::size_t i : {1U, 0U})
        model.compute(i, ready);
      has_launched = true;
    });
    CHECK(model.holds(1, 1.0F));
  });
}

}  // namespace

TEST_CASE("the first step's ready() enqueues a bucket of any size without another rank, whose connections exist") {
  SUBCASE("launched in the calling thread") {
    expect_enqueued_alone<true>();
  }
  SUBCASE("launched in threads of NCCL's") {
    expect_enqueued_alone<false>();
  }
}

TEST_CASE("the first step of a model of two types makes no connection, also with a sharded optimizer") {
  for (const bool sharded : {false, true}) {
    CAPTURE(sharded);
    const EmulatedDevices emulated(2);
    std::atomic<bool> has_launched{false};
    run_well<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
      TwoTypes model;
      DistributedDataParallel ddp{
          model, group, {.bucket_bytes = 100, .first_bucket_bytes = 100, .reorder_gradients = false}};
      const auto step = [&](auto&... optimizer) {
        if (group.rank() == 1) CHECK(holds_soon([&] { return has_launched.load(); }));
        ddp.backward(
            [&](Ready ready) {
              for (const std::size_t i : {2U, 1U, 0U})
                model.compute(i, ready);
            },
            optimizer...);
        has_launched = true;
        group.barrier();
      };
      if (sharded) {
        dtrain::ShardedOptimizer optimizer{ddp, dtrain::optimizers::AdamW{}};
        step(optimizer);
      } else {
        step();
      }
    });
  }
}

TEST_CASE("the first step of a hook whose collectives are no sums of the gradients' size makes no connection") {
  SUBCASE("twice the bytes") {
    expect_hook_alone<bfloat16>(25'000, dtrain::hooks::Widen{}, 1);
  }
  SUBCASE("averages") {
    expect_hook_alone<float>(25'000, dtrain::hooks::LocalSgd{{.start_after = 1}}, 1);
  }
  SUBCASE("a program's own") {
    expect_hook_alone<float>(64, HalvesHook{}, 2);
    expect_hook_alone<float>(25'600, HalvesHook{}, 2);
  }
}

TEST_CASE("a rank that does not come when the others connect is named at the timeout") {
  const EmulatedDevices emulated(2);
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& self) {
    NcclRank opened(job, self.rank(), 2, "ddp", 1s);
    if (self.rank() == 1) {
      CHECK(job->latch(1)->block_until_failed(Deadline::after(60s)));
      return;
    }
    const auto began = Deadline::Clock::now();
    const std::string why = support::sentence_of([&] { CudaTrainingRank(std::move(opened), {.timeout = 1s}); });
    CAPTURE(why);
    CHECK(support::contains(why, "all_reduce (average) of"));
    CHECK(support::contains(why, "it had not ended after 1.0 s; rank 1 of the channel is in none"));
    CHECK(Deadline::Clock::now() - began < 12s);
  });
}

#endif  // DTRAIN_EMULATED_CUDA
