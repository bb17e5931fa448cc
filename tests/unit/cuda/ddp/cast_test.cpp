#include "support/expect_error.hpp"
#include "unit/cuda/ddp/device_model.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::hooks::Cast;
using dtrain::hooks::every_parameter;

/// f32 parameters of sizes that are no multiples of what a thread moves, and one of f64, on the rank's device.
class Model : public DeviceModel {
 public:
  Model() {
    add<float>("p0", 1001, 1);
    add<float>("p1", 37, 1);
    add<float>("p2", 20'003, 1);
    add<double>("p3", 5, 1);
  }
  void bind_gradient(std::size_t i, const TensorView& view) { list_[i].gradient = view; }

  /// Element k of gradient i is `element(i, k)`.
  template <class Element>
  void backward(const Ready& ready, Element element) {
    block();  // the copies of the step before have run
    for (std::size_t i = 0; i + 1 < list_.size(); ++i)
      prepare_each<float>(i, element);
    prepare_each<double>(list_.size() - 1, element);
    for (std::size_t i = 0; i < list_.size(); ++i)
      compute(i, ready);
  }
};

float element(int step, int rank, std::size_t i, std::size_t k) {
  return std::sin(static_cast<float>(k + 100 * i + 7) * static_cast<float>(1 + rank + 3 * step)) * 0.01F;
}

/// How far the elements of f32 gradients are from the sum of each rank's rounded ones: the sum is rounded as well.
template <class Half>
int wrong_elements(const std::vector<float>& reduced, std::size_t i, int step, int ranks, float factor) {
  int wrong = 0;
  for (std::size_t k = 0; k < reduced.size(); ++k) {
    float sum = 0;
    float magnitude = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const float rounded = static_cast<float>(Half(element(step, rank, i, k) * factor));
      sum += rounded;
      magnitude += std::abs(rounded);
    }
    const float precision = std::is_same_v<Half, bfloat16> ? 0.004F : 0.0005F;
    const float allowed = magnitude * static_cast<float>(ranks - 1) * precision;
    wrong += std::abs(reduced[k] - sum) <= allowed + (ranks == 1 ? 0 : 1e-7F) ? 0 : 1;
    wrong += reduced[k] == static_cast<float>(Half(reduced[k])) ? 0 : 1;
  }
  return wrong;
}

/// Small buckets, so that they are planned anew after the first step.
template <class Policy, class Half>
void expect_cast_steps(int ranks, ReduceOp op) {
  std::atomic<int> wrong{0};
  std::vector<std::vector<float>> all(static_cast<std::size_t>(ranks));
  run_well<Policy>(ranks, [&](const dtrain::ProcessGroup<Policy>& group) {
    Model model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 5000, .reduce_op = op}, Cast<Half>()};
    const float factor = op == ReduceOp::average ? 1.0F / static_cast<float>(ranks) : 1.0F;
    for (int step = 0; step < 3; ++step) {
      ddp.backward([&](Ready ready) {
        model.backward(ready, [&](std::size_t i, std::size_t k) { return element(step, group.rank(), i, k); });
      });
      for (std::size_t i = 0; i < 3; ++i) {
        const std::vector<float> reduced = model.gradient<float>(i);
        wrong += wrong_elements<Half>(reduced, i, step, ranks, factor);
        std::vector<float>& own = all[static_cast<std::size_t>(group.rank())];
        own.insert(own.end(), reduced.begin(), reduced.end());
      }
      double sum = 0;  // f64 is reduced as it is
      for (int rank = 0; rank < ranks; ++rank)
        sum += static_cast<double>(element(step, rank, 3, 4)) * (op == ReduceOp::average ? 1.0 / ranks : 1.0);
      wrong += std::abs(model.gradient<double>(3)[4] - sum) < 1e-15 ? 0 : 1;
    }
    const dtrain::CompressedTraffic traffic = ddp.statistics().hook;
    wrong +=
        ranks == 1 || (traffic.bytes_sent > traffic.bytes / 2 && traffic.bytes_sent < traffic.bytes * 51 / 100) ? 0 : 1;
  });
  CHECK(wrong == 0);
  for (const std::vector<float>& of_rank : all) {
    REQUIRE(of_rank.size() == all[0].size());
    CHECK(std::memcmp(of_rank.data(), all[0].data(), all[0].size() * sizeof(float)) == 0);
  }
}

/// The error of the wrapper's constructor.
std::string error_with(Cast<bfloat16> hook) {
  std::string text;
  (void)run_groups<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model;
    try {
      const DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
    } catch (const dtrain::Error& error) {
      text = error.what();
    }
  });
  return text;
}

}  // namespace

TEST_CASE("hooks::Cast reduces 16 bits of every element on a device, to the same bits on all ranks") {
  for (const int ranks : {1, 2, 3}) {
    if (!support::enough_devices(ranks)) {
      dtrain_test::skip("there is no device for each rank");
      continue;
    }
    for (const ReduceOp op : {ReduceOp::average, ReduceOp::sum}) {
      CAPTURE(ranks);
      expect_cast_steps<NcclPolicy, bfloat16>(ranks, op);
      expect_cast_steps<NcclPolicy, float16>(ranks, op);
      expect_cast_steps<StagedPolicy, bfloat16>(ranks, op);
    }
  }
}

TEST_CASE("an average of f16 on devices that is in range does not overflow on the way") {
  if (!support::enough_devices(3)) return dtrain_test::skip("there is no device for each of 3 ranks");
  run_well<NcclPolicy>(3, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model;
    DistributedDataParallel ddp{model, group, {}, Cast<float16>()};
    ddp.backward([&](Ready ready) { model.backward(ready, [](std::size_t, std::size_t) { return 60000.0F; }); });
    CHECK(std::ranges::all_of(model.gradient<float>(0), [](float value) { return std::abs(value - 60000.0F) <= 64; }));
  });
}

TEST_CASE("errors of gradients on a device are not kept, and the sentence says so") {
  REQUIRE(support::enough_devices(1));
  CHECK(error_with(Cast<bfloat16>{{.error_feedback = every_parameter}}) ==
        "CastOptions::error_feedback is for gradients in host memory, but that of parameter 0 'p0' is on cuda:0; leave "
        "it out");
}

TEST_CASE("a hooks::Cast on a device is for one model, and says so") {
  REQUIRE(support::enough_devices(1));
  (void)run_groups<NcclPolicy>(1, [](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model model;
    Model other;
    Cast<bfloat16> hook;
    const DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
    CHECK_ERROR((DistributedDataParallel{other, group, {}, std::ref(hook)}), dtrain::Errc::invalid_argument,
                "a hooks::Cast on a CUDA device is given to a second model; each model needs its own",
                "in an elastic job: make the hook in the function of train()");
  });
}

TEST_CASE("a hooks::Cast on a device that was told no plan says so") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  support::NcclRank rank(std::make_shared<support::FakeJob>(1), 0, 1);
  const support::DeviceBuffer memory = support::on_device(std::vector<float>(64, 1.0F));
  const dtrain::ddp::GradientBucket<support::NcclRank::Communicator> bucket{
      rank.view(memory, 64, dtrain::DType::f32), {}, {rank.communicator}, rank.stream.ref(), ReduceOp::sum};
  Cast<bfloat16> hook;
  CHECK_THROWS_WITH_AS(hook.reduce(bucket),
                       "hooks::Cast has no memory on cuda:0 for a bucket of 64 values; a hook that passes its calls on "
                       "also passes plan(channel, plan, deadline)",
                       dtrain::Error);
}

#if DTRAIN_EMULATED_CUDA
TEST_CASE("hooks::Cast on a device has its memory from the channel before the first step, and steps allocate none") {
  REQUIRE(support::enough_devices(1));
  for (const bool captured : {false, true}) {
    CAPTURE(captured);
    support::NcclRank opened(std::make_shared<support::FakeJob>(1), 0, 1, "ddp");
    const std::size_t before = emulation::allocated_device_bytes();
    std::vector<dtrain::Parameter>* parameters = nullptr;
    // Two buckets, then one of both: the second plan's is larger.
    support::CudaTrainingRank::Wanted wanted{
        .sizes = {3000, 1000}, .caps = {0, 0}, .options = {.bucket_bytes = 1 << 20}};
    wanted.hook = dtrain::ddp::hook_functions<support::NcclRank::Communicator>(Cast<bfloat16>());
    wanted.parts.rebuild = {[](const std::vector<std::size_t>& order) { return order; },
                            [&](std::size_t i, const dtrain::TensorView& view) { (*parameters)[i].gradient = view; }};
    support::CudaTrainingRank rank(std::move(opened), std::move(wanted));
    parameters = &rank.parameters;
    const std::size_t gradients = 4000 * sizeof(float);
    const std::size_t wrapped = emulation::allocated_device_bytes() - before;
    CHECK(wrapped >= 2 * gradients + 3000 * sizeof(bfloat16));  // own gradients, arena, 16-bit values
    CHECK(rank.reducer->plan().buckets.size() == 2);
    rank.step();  // and the second plan
    REQUIRE(rank.wait());
    CHECK(rank.reducer->plan().buckets.size() == 1);
    const std::size_t planned = emulation::allocated_device_bytes();
    for (const char* const call : {"cudaMalloc", "cudaMallocAsync", "ncclMemAlloc", "ncclCommRegister"})
      emulation::fail(call, 1, cudaErrorMemoryAllocation);  // a step that called one would fail
    if (captured) support::check(cudaStreamBeginCapture(rank.stream().native(), cudaStreamCaptureModeGlobal), "begin");
    rank.step();
    cudaGraph_t graph = nullptr;
    if (captured) support::check(cudaStreamEndCapture(rank.stream().native(), &graph), "end");
    if (captured) support::check(cudaGraphDestroy(graph), "destroy");
    rank.step();
    REQUIRE(rank.wait());
    CHECK(emulation::allocated_device_bytes() == planned);
    emulation::reset();
    REQUIRE(support::enough_devices(1));
  }
}

TEST_CASE("a driver that does not load the kernel of hooks::Cast is named") {
  REQUIRE(support::enough_devices(1));
  constexpr int copies = 2;                            // of f32 and f64, launched first
  emulation::fail("cuLaunchKernel", copies + 1, 209);  // CUDA_ERROR_NO_BINARY_FOR_GPU
  CHECK(error_with(Cast<bfloat16>()) ==
        "the CUDA driver does not load the kernel with which hooks::Cast rounds gradients on cuda:0: it is older than "
        "CUDA 12, or cannot compile PTX; update it, or leave the hook out");
  CHECK(error_with(Cast<bfloat16>()) == "");
}
#endif
