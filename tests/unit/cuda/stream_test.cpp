#include "dtrain/stream/cuda/copy_batch.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

static_assert(std::is_trivially_copyable_v<StreamRef>);
static_assert(!std::is_constructible_v<StreamRef, int, int>);
static_assert(!std::is_constructible_v<StreamRef, std::nullptr_t, int>);
static_assert(!std::is_copy_constructible_v<Stream> && std::is_nothrow_move_constructible_v<Stream>);
static_assert(!std::is_copy_constructible_v<DeviceBuffer> && std::is_nothrow_move_constructible_v<DeviceBuffer>);

}  // namespace

TEST_CASE("a CUDA stream names its device, its handle gives the same stream back, and one of the host is refused") {
  const Stream stream(Priority::high);
  CHECK(stream.ref().device() == dtrain::Device{DeviceKind::cuda, 0});
  CHECK(StreamRef::of(stream.ref().handle()) == stream.ref());
  CHECK_THROWS_WITH_AS(StreamRef::of(StreamHandle{}), doctest::Contains("cudaStream_t"), Error);
  CHECK_FALSE(stream.ref().is_capturing());
}

TEST_CASE("a handle without a stream is the device's default stream") {
  const StreamRef stream = StreamRef::of({{DeviceKind::cuda, 0}, nullptr});
  CHECK(stream.native() == cudaStreamLegacy);
  CHECK(completes(stream));
}

TEST_CASE("a CUDA stream moves and its references stay valid") {
  Stream first;
  const StreamRef reference = first.ref();
  const Stream second = std::move(first);
  CHECK(reference == second.ref());
  CHECK(completes(reference));
}

TEST_CASE("a communication stream is made when it is first asked for, and stays the same") {
  CommunicationStream owner;
  const StreamRef reference = owner.ref();
  CHECK(owner.ref() == reference);
  CommunicationStream moved = std::move(owner);
  CHECK(moved.ref() == reference);
  CHECK(completes(reference));
}

TEST_CASE("memory goes from the host to the device and back") {
  const std::vector<float> values{1, 2, 3, 4, 5};
  const DeviceBuffer device = support::on_device(values);
  const Stream stream;
  const PinnedBuffer pinned(device.bytes());
  support::check(
      cudaMemcpyAsync(pinned.data(), device.data(), device.bytes(), cudaMemcpyDeviceToHost, stream.ref().native()),
      "cudaMemcpyAsync");
  REQUIRE(completes(stream.ref()));
  const float* const copied = reinterpret_cast<const float*>(pinned.data());
  CHECK(std::vector<float>(copied, copied + values.size()) == values);
  CHECK(support::on_host<float>(device.data(), values.size()) == values);
}

TEST_CASE("buffers without bytes have no memory and cost nothing") {
  const DeviceBuffer device(0);
  const PinnedBuffer pinned(0);
  CHECK(device.data() == nullptr);
  CHECK(pinned.data() == nullptr);
}

TEST_CASE("a batch of copies does them all, in one call or one by one, and is empty afterwards") {
  const std::vector<int> values{1, 2, 3, 4, 5, 6, 7, 8};
  const DeviceBuffer from = support::on_device(values);
  const DeviceBuffer to = support::on_device(std::vector<int>(8, 0));
  const Stream owned;
  CopyBatch batch;
  batch.reserve(3);
  const auto copy_all = [&](StreamRef stream) {
    batch.add(to.data(), from.data() + 16, 16);
    batch.add(to.data() + 4, from.data(), 0);  // nothing
    batch.add(to.data() + 16, from.data(), 8);
    batch.add(to.data() + 24, from.data() + 8, 8);
    CHECK(batch.size() == 3);
    batch.enqueue(stream);
    CHECK(batch.empty());
    REQUIRE(completes(stream));
    CHECK(support::on_host<int>(to.data(), 8) == std::vector<int>{5, 6, 7, 8, 1, 2, 3, 4});
    support::check(cudaMemset(to.data(), 0, to.bytes()), "cudaMemset");
    support::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  };
  copy_all(owned.ref());
  copy_all(StreamRef::of({{DeviceKind::cuda, 0}, nullptr}));
#if DTRAIN_EMULATED_CUDA
  emulation::fail("cudaMemcpyBatchAsync", 1, cudaErrorNotSupported);
  copy_all(owned.ref());
  copy_all(owned.ref());
  CHECK(cudaGetLastError() == cudaSuccess);
#endif
}

#if DTRAIN_EMULATED_CUDA
TEST_CASE("a batch is refused for the first time in a process" * doctest::skip()) {
  const DeviceBuffer from = support::on_device(std::vector<int>{1, 2, 3, 4});
  const DeviceBuffer to = support::on_device(std::vector<int>(4, 0));
  const Stream owned;
  CopyBatch batch;
  support::CapturedStderr captured;
  emulation::fail("cudaMemcpyBatchAsync", 1, cudaErrorInvalidValue);
  emulation::fail("cudaMemcpyBatchAsync", 2, cudaErrorInvalidDevice);  // not called again
  for (int round = 0; round < 2; ++round) {
    batch.add(to.data(), from.data() + 8, 8);
    batch.add(to.data() + 8, from.data(), 8);
    batch.enqueue(owned.ref());
    REQUIRE(completes(owned.ref()));
    CHECK(support::on_host<int>(to.data(), 4) == std::vector<int>{3, 4, 1, 2});
  }
  const std::string first = "cudaMemcpyBatchAsync on device 0: cudaErrorInvalidValue";
  CHECK(support::contains(captured.text(), first));
  CHECK(captured.text().find("gradients are copied one by one") ==
        captured.text().rfind("gradients are copied one by one"));
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE(
    "a batch that the driver refuses for whatever reason is copied one by one from then on, and the log says so") {
  const support::Result result =  // a process logs it once
      support::run("/proc/self/exe", {"--no-skip", "--test-case=a batch is refused for the first time in a process"});
  CHECK_MESSAGE(result.exit_code == 0, result.output << result.error);
  CHECK_CONTAINS(result.output, "1 passed");
}
#endif

#if DTRAIN_EMULATED_CUDA
TEST_CASE("the default stream counts as captured while a stream that it orders is") {
  emulation::fail("cudaStreamIsCapturing", 1, cudaErrorStreamCaptureImplicit);
  CHECK(StreamRef::of({{DeviceKind::cuda, 0}, nullptr}).is_capturing());
  CHECK(!StreamRef::of({{DeviceKind::cuda, 0}, nullptr}).is_capturing());
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("an error of the runtime says the call, its code and the device, and leaves nothing for the user's checks") {
  emulation::fail("cudaMalloc", 1, cudaErrorMemoryAllocation);
  const Error error = support::error_of([] { const DeviceBuffer buffer(4096); });
  CHECK(std::string(error.code().category().name()) == "cuda");
  CHECK(error.code().value() == cudaErrorMemoryAllocation);
  CHECK(std::string(error.what()).find("cudaMalloc of 4096 bytes on device 0: cudaErrorMemoryAllocation") == 0);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("a device that fails shows in a wait for its events, and an event that is asked is not complete") {
  const Stream stream;
  Event event;
  stream.ref().record(event);
  emulation::fail("cudaEventQuery", 1, cudaErrorIllegalAddress);
  CHECK_FALSE(event.is_complete());
  emulation::fail("cudaEventQuery", 1, cudaErrorIllegalAddress);
  CHECK_THROWS_WITH_AS(static_cast<void>(event.block_until_complete(Deadline::after(60s))),
                       doctest::Contains("cudaErrorIllegalAddress"), Error);
  CHECK(event.block_until_complete(Deadline::after(60s)) == WaitResult::complete);
}

TEST_CASE("a thread that never chose a device is given none back, which would cost a context on device 0") {
  emulation::set_device_count(2);
  support::check(cudaSetDevice(0), "cudaSetDevice");
  emulation::drop_context(0);
  std::thread([] { const dtrain::stream::cuda::DeviceGuard guard(1); }).join();
  CHECK(emulation::has_context(1));
  CHECK(!emulation::has_context(0));
  support::check(cudaSetDevice(0), "cudaSetDevice");
  CHECK(emulation::has_context(0));
  emulation::set_device_count(1);
}

TEST_CASE("a guard changes the thread's device and gives back what was there") {
  emulation::set_device_count(2);
  support::check(cudaSetDevice(0), "cudaSetDevice");
  {
    const dtrain::stream::cuda::DeviceGuard guard(1);
    CHECK(dtrain::stream::cuda::current_device() == 1);
    const Stream stream;
    CHECK(stream.ref().device().index == 1);
  }
  CHECK(dtrain::stream::cuda::current_device() == 0);
  CHECK_THROWS_AS(dtrain::stream::cuda::DeviceGuard(2), Error);
  CHECK(dtrain::stream::cuda::current_device() == 0);
  emulation::set_device_count(1);
}

TEST_CASE("an event follows the stream that records it from one device to another") {
  emulation::set_device_count(2);
  const Stream first(Priority::normal, 0);
  const Stream second(Priority::normal, 1);
  Event event;
  first.ref().record(event);
  CHECK(event.block_until_complete(Deadline::after(60s)) == WaitResult::complete);
  second.ref().record(event);
  CHECK(event.block_until_complete(Deadline::after(60s)) == WaitResult::complete);
  emulation::set_device_count(1);
}
#endif  // DTRAIN_EMULATED_CUDA
