#include "dtrain/ddp/reduction/cuda/bucket_copies.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::ddp::BucketCopies;
using dtrain::ddp::BucketPlan;

/// Gradients of a type in host memory, the same in device memory, a plan, and the arena.
struct Gradients {
  static constexpr std::size_t counts[] = {5, 1001, 64, 8200};

  explicit Gradients(DType dtype) {
    std::mt19937_64 random(11);
    std::vector<dtrain::ddp::GradientSize> sizes;
    for (const std::size_t count : counts) {
      std::vector<std::byte>& gradient = bytes.emplace_back(count * size_bytes(dtype));
      for (std::byte& byte : gradient)
        byte = static_cast<std::byte>(random());  // NaNs of all kinds, subnormals, infinities
      own.push_back(support::on_device(gradient));
      sizes.push_back({gradient.size(), dtype, {dtrain::DeviceKind::cuda, own.back().device()}});
    }
    plan = dtrain::ddp::plan_buckets(sizes, {0, std::size_t{1} << 20});
    arena = support::on_device(std::vector<std::byte>(plan.arena_bytes));
  }

  std::size_t bucket(std::size_t i) const { return plan.bucket_of[i]; }
  std::byte* place(std::size_t i) const { return arena.data() + plan.offset_of[i]; }

  std::vector<std::vector<std::byte>> bytes;
  std::vector<DeviceBuffer> own;
  BucketPlan plan;
  DeviceBuffer arena;
};

void wait(StreamRef stream) {
  REQUIRE(completes(stream, 60s));
}

/// Packs and unpacks the gradients, and compares every bit.
void expect_all_bits(DType dtype, BucketCopies& copies) {
  CAPTURE(name(dtype));
  const Gradients gradients(dtype);
  const dtrain::stream::cuda::Stream stream;
  copies.plan(gradients.plan, false, stream.ref());
  const auto copy_all = [&](auto add) {
    for (std::size_t bucket = 0; bucket < gradients.plan.buckets.size(); ++bucket) {
      CHECK(copies.empty(bucket));
      for (const std::size_t i : gradients.plan.buckets[bucket].parameters)
        add(bucket, i);
      CHECK_FALSE(copies.empty(bucket));
      copies.enqueue(bucket, 1, stream.ref());
    }
  };
  copy_all([&](std::size_t bucket, std::size_t i) {
    copies.add(bucket, gradients.place(i), gradients.own[i].data(), gradients.bytes[i].size());
  });
  wait(stream.ref());
  for (const DeviceBuffer& own : gradients.own)
    support::write(own.data(), std::vector<std::byte>(own.bytes()));
  copy_all([&](std::size_t bucket, std::size_t i) {
    copies.add(bucket, gradients.own[i].data(), gradients.place(i), gradients.bytes[i].size());
  });
  wait(stream.ref());
  for (std::size_t i = 0; i < gradients.own.size(); ++i)
    CHECK(support::on_host<std::byte>(gradients.own[i].data(), gradients.bytes[i].size()) == gradients.bytes[i]);
}

}  // namespace

TEST_CASE("gradients of every type come back from their buckets with all bits") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  BucketCopies copies;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8,
                            DType::f8e4m3, DType::f8e5m2}) {
    expect_all_bits(dtype, copies);
  }
}

#if DTRAIN_EMULATED_CUDA

TEST_CASE("a bucket of floats is packed and unpacked by one kernel each, and no copy of the runtime's") {
  REQUIRE(support::enough_devices(1));
  for (const bool captured : {false, true}) {
    CAPTURE(captured);
    CudaTrainingRank rank(std::make_shared<FakeJob>(1), 0, 1, {.sizes = {40, 30, 1000, 20, 17}, .caps = {256, 4096}});
    const int buckets = static_cast<int>(rank.reducer->plan().buckets.size());
    REQUIRE(rank.reducer->plan().buckets.size() < rank.count());
    rank.step();
    REQUIRE(rank.wait());
    for (const char* const copy : {"cudaMemcpyAsync", "cudaMemcpyBatchAsync"})
      emulation::fail(copy, 1, cudaErrorInvalidValue);  // a step that called one would fail
    emulation::fail("cuLaunchKernel", 2 * buckets + 1, 209);
    if (captured) support::check(cudaStreamBeginCapture(rank.stream().native(), cudaStreamCaptureModeGlobal), "begin");
    rank.step();
    cudaGraph_t graph = nullptr;
    if (captured) support::check(cudaStreamEndCapture(rank.stream().native(), &graph), "end");
    if (captured) support::check(cudaGraphDestroy(graph), "destroy");
    CHECK_FALSE(dtrain::stream::cuda::ScaledCopyBatch::load(DType::f32, DType::f32, rank.stream()));  // the next launch
    emulation::reset();
    REQUIRE(support::enough_devices(1));
    REQUIRE(rank.wait());
  }
}

TEST_CASE("where the driver does not load the kernel the runtime copies gradients, with all bits") {
  REQUIRE(support::enough_devices(1));
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    BucketCopies copies;
    const support::CapturedStderr captured;  // the driver's reason is logged
    emulation::fail("cuLaunchKernel", 1, 209);
    emulation::fail("cuLaunchKernel", 2, 209);  // would be the packing
    expect_all_bits(dtype, copies);
    emulation::reset();
    REQUIRE(support::enough_devices(1));
  }
}

#endif
