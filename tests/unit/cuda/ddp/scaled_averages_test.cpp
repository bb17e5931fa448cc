#include "dtrain/ddp/setup/driver.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::ddp::scales_averages;
using NcclCommunicator = Nccl::Communicator;
using StagedCommunicator = Staged<SharedMemory>::Communicator;

constexpr std::size_t elements = 5000;

template <class T>
std::vector<T> gradient_of(int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::vector<T> values(elements);
  for (T& value : values)
    value = T(1.0F + static_cast<float>(random() % 1000) / 1000.0F);
  return values;
}

/// The mean of (result - average) / average over one step of so many ranks.
template <class T>
double bias_of_average(int ranks, bool bound) {
  const auto job = std::make_shared<FakeJob>(ranks);
  std::atomic<double> bias{0};
  run_thread_ranks(ranks, [&](RankThread& self) {
    support::NcclRank nccl(job, self.rank(), ranks, "ddp");
    const dtrain::Device device{dtrain::DeviceKind::cuda, nccl.device};
    const support::DeviceBuffer memory = support::on_device(gradient_of<T>(self.rank()));
    const dtrain::TensorView view{memory.data(), {elements}, dtrain::dtype_of<T>::value, device};
    const std::vector<dtrain::Parameter> parameters{{"p", view, view}};
    dtrain::ddp::ReducerParts parts;
    parts.scales_averages = scales_averages<NcclCommunicator>(parameters, ReduceOp::average, ranks, nccl.stream.ref());
    REQUIRE(parts.scales_averages);
    support::NcclReducer reducer(std::move(nccl.communicator), nccl.stream.ref(), parameters,
                                 dtrain::ddp::plan_buckets(dtrain::ddp::gradient_sizes(parameters), {0, 0}), {},
                                 {nccl.latch, self.rank(), "host", std::chrono::seconds(10), {}}, std::move(parts));
    const dtrain::TensorView gradient = bound ? reducer.bind(0) : view;
    const dtrain::stream::cuda::Stream stream;
    dtrain::Step step = reducer.begin();
    step.ready(0, stream.ref().handle());
    step.finish();
    REQUIRE(completes(stream.ref()));
    const auto results = support::on_host<T>(static_cast<const std::byte*>(gradient.data), elements);
    if (self.rank() != 0) return;
    std::vector<double> sums(elements);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto values = gradient_of<T>(rank);
      for (std::size_t i = 0; i < elements; ++i)
        sums[i] += static_cast<double>(static_cast<float>(values[i]));
    }
    double sum = 0;
    for (std::size_t i = 0; i < elements; ++i)
      sum += static_cast<double>(static_cast<float>(results[i])) * ranks / sums[i] - 1;
    bias = sum / elements;
  });
  return bias;
}

}  // namespace

TEST_CASE("averages over 3 ranks of 16 bits are right on average: no common factor is in them") {
  if (!support::enough_devices(3)) return dtrain_test::skip("there is no device for each of 3 ranks");
  for (const bool bound : {false, true}) {
    CAPTURE(bound);
    CHECK(std::abs(bias_of_average<bfloat16>(3, bound)) < 5e-4);  // ncclAvg: 2e-3
    CHECK(std::abs(bias_of_average<float16>(3, bound)) < 5e-5);   // ncclAvg: 2.4e-4
    CHECK(std::abs(bias_of_average<float>(3, bound)) < 1e-6);
  }
}

TEST_CASE("only averages of floats over several ranks of NCCL are scaled sums, and only with the driver's help") {
  REQUIRE(support::enough_devices(1));
  const dtrain::TensorView floats{nullptr, {4}, DType::f32, {dtrain::DeviceKind::cuda, 0}};
  dtrain::TensorView bytes = floats;
  bytes.dtype = DType::u8;
  const std::vector<dtrain::Parameter> model{{"w", floats, floats}};
  const dtrain::stream::cuda::Stream stream;
  const std::vector<dtrain::Parameter> mixed{{"w", floats, floats}, {"b", bytes, bytes}};
  CHECK(scales_averages<NcclCommunicator>(model, ReduceOp::average, 2, stream.ref()));
  CHECK_FALSE(scales_averages<NcclCommunicator>(model, ReduceOp::average, 1, stream.ref()));
  CHECK_FALSE(scales_averages<NcclCommunicator>(model, ReduceOp::sum, 2, stream.ref()));
  CHECK_FALSE(scales_averages<NcclCommunicator>(mixed, ReduceOp::average, 2, stream.ref()));
  CHECK_FALSE(scales_averages<StagedCommunicator>(model, ReduceOp::average, 2, stream.ref()));
}

#if DTRAIN_EMULATED_CUDA
TEST_CASE("a driver that loads a kernel only when it is launched, and then cannot, leaves averages to NCCL") {
  REQUIRE(support::enough_devices(1));
  const dtrain::TensorView floats{nullptr, {4}, DType::f32, {dtrain::DeviceKind::cuda, 0}};
  const std::vector<dtrain::Parameter> model{{"w", floats, floats}};
  const dtrain::stream::cuda::Stream stream;
  emulation::fail("cuLaunchKernel", 1, 209);  // CUDA_ERROR_NO_BINARY_FOR_GPU
  support::CapturedStderr captured;
  dtrain::stream::cuda::log_unloaded_kernel(
      "another reason");  // the last one, be it another test's, is not logged again
  CHECK_FALSE(scales_averages<NcclCommunicator>(model, ReduceOp::average, 2, stream.ref()));
  CHECK(
      support::contains(captured.text(), "the CUDA driver does not load dtrain's kernels (cuLaunchKernel on device 0"));
  CHECK(support::contains(captured.text(), "averages are left to NCCL"));
  CHECK(scales_averages<NcclCommunicator>(model, ReduceOp::average, 2, stream.ref()));
}
#endif
