// hooks::Widen on devices: 16-bit gradients whose sum is rounded once.

#include "dtrain/ddp/hooks/cast.hpp"
#include "support/expect_error.hpp"
#include "unit/cuda/ddp/device_model.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::hooks::Widen;

/// Gradients of four types, of sizes that are no multiples of what a thread moves.
class Model : public DeviceModel {
 public:
  Model() {
    add<bfloat16>("brain", 1001, bfloat16(1.0F));
    add<float16>("half", 20'003, float16(1.0F));
    add<float>("single", 37, 1);
    add<double>("double", 5, 1);
    add<bfloat16>("bias", 3, bfloat16(1.0F));
  }

  template <class Element>
  void backward(const Ready& ready, Element element) {
    block();  // the copies of the step before have run
    prepare_each<bfloat16>(0, element);
    prepare_each<float16>(1, element);
    prepare_each<float>(2, element);
    prepare_each<double>(3, element);
    prepare_each<bfloat16>(4, element);
    for (std::size_t i = list_.size(); i-- > 0;)
      compute(i, ready);
  }
};

using BindingModel = Binding<Model>;

/// Of one sign, and exact in all types and in sums: 256 of rank 0, else 1 to 8.
float element(int step, int rank, std::size_t i, std::size_t k) {
  return rank == 0 ? 256.0F : static_cast<float>(1 + (k * 7 + i + static_cast<std::size_t>(step + rank)) % 8);
}

/// Elements of gradient i that are not the exact result, rounded once. @param precision half of the last place
template <class T>
int wrong_elements(const Model& model, std::size_t i, int step, int ranks, double factor, double precision) {
  int wrong = 0;
  const std::vector<T> reduced = model.gradient<T>(i);
  for (std::size_t k = 0; k < reduced.size(); ++k) {
    double sum = 0;
    for (int rank = 0; rank < ranks; ++rank)
      sum += static_cast<double>(element(step, rank, i, k));
    const double got = static_cast<double>(static_cast<float>(reduced[k]));
    wrong += std::abs(got / (sum * factor) - 1) <= precision * 1.0001 + 1e-6 ? 0 : 1;
  }
  return wrong;
}

template <class T>
bool is_whole(const std::vector<T>& values, float expected) {
  return std::ranges::all_of(values, [expected](T value) { return static_cast<float>(value) == expected; });
}

template <class Policy, class AnyModel, class Hook>
int wrong_steps(int ranks, ReduceOp op, const Hook& hook) {
  std::atomic<int> wrong{0};
  std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(ranks));
  run_well<Policy>(ranks, [&](const dtrain::ProcessGroup<Policy>& group) {
    AnyModel model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 5000, .reduce_op = op}, Hook(hook)};
    const double factor = op == ReduceOp::average ? 1.0 / ranks : 1.0;
    for (int step = 0; step < 3; ++step) {
      ddp.backward([&](Ready ready) {
        model.backward(ready, [&](std::size_t i, std::size_t k) { return element(step, group.rank(), i, k); });
      });
      constexpr double bf16_precision = 1.0 / 256;
      wrong += wrong_elements<bfloat16>(model, 0, step, ranks, factor, bf16_precision);
      wrong += wrong_elements<float16>(model, 1, step, ranks, factor, 1.0 / 2048);
      wrong += wrong_elements<float>(model, 2, step, ranks, factor, 0);
      wrong += wrong_elements<double>(model, 3, step, ranks, factor, 0);
      wrong += wrong_elements<bfloat16>(model, 4, step, ranks, factor, bf16_precision);
      std::vector<std::byte>& own = all[static_cast<std::size_t>(group.rank())];
      for (std::size_t i = 0; i < 5; ++i) {
        const std::vector<std::byte> reduced = model.gradient(i);
        own.insert(own.end(), reduced.begin(), reduced.end());
      }
    }
    if constexpr (std::is_same_v<Hook, Widen>) {
      const dtrain::CompressedTraffic traffic = ddp.statistics().hook;
      CHECK((ranks == 1 || (traffic.bytes_sent > traffic.bytes * 19 / 10 && traffic.bytes_sent < traffic.bytes * 2)));
    }
  });
  for (const std::vector<std::byte>& of_rank : all)
    wrong += of_rank == all[0] ? 0 : 1;
  return wrong;
}

}  // namespace

TEST_CASE("hooks::Widen rounds a sum of 16-bit gradients once, to the same bits on all ranks") {
  for (const int ranks : {1, 2, 3}) {
    if (!support::enough_devices(ranks)) {
      dtrain_test::skip("there is no device for each rank");
      continue;
    }
    for (const ReduceOp op : {ReduceOp::average, ReduceOp::sum}) {
      CAPTURE(ranks);
      CHECK(wrong_steps<NcclPolicy, Model>(ranks, op, Widen()) == 0);
      CHECK(wrong_steps<NcclPolicy, BindingModel>(ranks, op, Widen()) == 0);
      CHECK(wrong_steps<StagedPolicy, Model>(ranks, op, Widen()) == 0);
    }
  }
  if (!support::enough_devices(3)) return;
  CHECK(wrong_steps<NcclPolicy, Model>(3, ReduceOp::sum, dtrain::hooks::Cast<bfloat16>()) > 100);  // NCCL's own sum
}

TEST_CASE("a hooks::Widen is for one model, has a plan first, and allocates nothing in steps, which may be captured") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  (void)run_groups<NcclPolicy>(1, [](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model;
    Model other;
    Widen hook;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 5000}, std::ref(hook)};
    CHECK_ERROR((DistributedDataParallel{other, group, {}, std::ref(hook)}), dtrain::Errc::invalid_argument,
                "a hooks::Widen is given to a second model; each model needs its own",
                "in an elastic job: make the hook in the function of train()");
    const auto step = [&](float value) {
      ddp.backward([&](Ready ready) { model.backward(ready, [&](std::size_t, std::size_t) { return value; }); });
    };
    step(2);
    model.block();
#if DTRAIN_EMULATED_CUDA
    for (const char* const call : {"cudaMalloc", "cudaMallocAsync", "ncclMemAlloc", "ncclCommRegister"})
      emulation::fail(call, 1, cudaErrorMemoryAllocation);  // a step that called one would fail
#endif
    step(3);
    CHECK(is_whole(model.gradient<bfloat16>(0), 3));
    const auto announce = [&] {
      Step open = ddp.begin();
      for (std::size_t i = 5; i-- > 0;)
        model.compute(i, open.ready());
      open.finish();
    };
    const Graph graph = captured(model.stream(), announce);
    graph.launch(model.stream());
    CHECK(is_whole(model.gradient<float16>(1), 3));
#if DTRAIN_EMULATED_CUDA
    emulation::reset();
#endif
  });
  support::NcclRank rank(std::make_shared<support::FakeJob>(1), 0, 1);
  const support::DeviceBuffer memory = support::on_device(std::vector<bfloat16>(64, bfloat16(1.0F)));
  const dtrain::ddp::GradientBucket<support::NcclRank::Communicator> bucket{
      rank.view(memory, 64, DType::bf16), {}, {rank.communicator}, rank.stream.ref(), ReduceOp::sum};
  Widen unplanned;
  CHECK_THROWS_WITH_AS(unplanned.reduce(bucket),
                       "hooks::Widen has no memory on cuda:0 for a bucket of 64 values; a hook that passes its calls "
                       "on also passes plan(channel, plan, deadline)",
                       dtrain::Error);
}
