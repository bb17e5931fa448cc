#include "unit/cuda/prelude.hpp"

namespace {

struct Reset {
  ~Reset() { emulation::reset(); }
};

}  // namespace

TEST_CASE("an emulated stream waits for an event of another") {
  const Reset reset;
  emulation::ignore_wait(0);
  TwoStreams streams;
  CHECK(written_and_read(streams) == 7);
  CHECK(emulation::waits() == 1);
}

TEST_CASE("an emulated event tells when its stream has come to it") {
  TwoStreams streams;
  CHECK(cudaEventQuery(streams.event) == cudaSuccess);  // never recorded
  std::atomic<bool> may_go_on{false};
  emulation::launch(streams.first, [&] {
    while (!may_go_on)
      std::this_thread::yield();
  });
  EXPECT_SUCCESS(cudaEventRecord(streams.event, streams.first));
  CHECK(cudaEventQuery(streams.event) == cudaErrorNotReady);
  CHECK(cudaStreamQuery(streams.first) == cudaErrorNotReady);
  CHECK(cudaStreamQuery(streams.second) == cudaSuccess);
  may_go_on = true;
  EXPECT_SUCCESS(cudaEventSynchronize(streams.event));
  CHECK(cudaEventQuery(streams.event) == cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("a host function of an emulated stream may call nothing of CUDA") {
  TwoStreams streams;
  cudaError_t inside = cudaSuccess;
  const auto function = [](void* result) { *static_cast<cudaError_t*>(result) = cudaSetDevice(0); };
  EXPECT_SUCCESS(cudaLaunchHostFunc(streams.first, function, &inside));
  EXPECT_SUCCESS(cudaStreamSynchronize(streams.first));
  CHECK(inside == cudaErrorNotPermitted);
}

TEST_CASE("host functions of an emulated device run one at a time, and kernels beside them") {
  TwoStreams streams;
  struct Held {
    std::atomic<bool> has_begun{false};
    std::atomic<bool> may_end{false};
  };
  Held held;
  std::atomic<bool> has_run{false};
  EXPECT_SUCCESS(cudaLaunchHostFunc(
      streams.first,
      [](void* given) {
        auto* const self = static_cast<Held*>(given);
        self->has_begun = true;
        while (!self->may_end)
          std::this_thread::yield();
      },
      &held));
  while (!held.has_begun)
    std::this_thread::yield();
  std::atomic<bool> kernel_has_run{false};
  emulation::launch(streams.second, [&] { kernel_has_run = true; });
  EXPECT_SUCCESS(cudaLaunchHostFunc(
      streams.second, [](void* given) { *static_cast<std::atomic<bool>*>(given) = true; }, &has_run));
  while (!kernel_has_run)
    std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(has_run.load());
  held.may_end = true;
  EXPECT_SUCCESS(cudaStreamSynchronize(streams.second));
  CHECK(has_run.load());
  EXPECT_SUCCESS(cudaStreamSynchronize(streams.first));
}

TEST_CASE("emulated calls that wait for a whole device are counted") {
  const Reset reset;
  TwoStreams streams;
  void* device = nullptr;
  void* pinned = nullptr;
  const int before = emulation::device_waits();
  EXPECT_SUCCESS(cudaEventRecord(streams.event, streams.first));
  EXPECT_SUCCESS(cudaStreamSynchronize(streams.first));
  EXPECT_SUCCESS(cudaMallocAsync(&device, 100, streams.first));
  EXPECT_SUCCESS(cudaFreeAsync(device, streams.first));
  CHECK(emulation::device_waits() == before);
  EXPECT_SUCCESS(cudaDeviceSynchronize());
  CHECK(emulation::device_waits() == before + 1);
  EXPECT_SUCCESS(cudaMalloc(&device, 100));
  EXPECT_SUCCESS(cudaFree(device));
  EXPECT_SUCCESS(cudaHostAlloc(&pinned, 100, cudaHostAllocDefault));
  EXPECT_SUCCESS(cudaFreeHost(pinned));
  CHECK(emulation::device_waits() == before + 5);
}

TEST_CASE("an emulated graph does again what was captured, on all its streams") {
  TwoStreams streams;
  cudaEvent_t joined = nullptr;
  EXPECT_SUCCESS(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
  float* const data = streams.shadow();
  data[0] = 0;
  EXPECT_SUCCESS(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeGlobal));
  emulation::launch(streams.first, [data] { data[0] += 1; });
  EXPECT_SUCCESS(cudaEventRecord(streams.event, streams.first));
  EXPECT_SUCCESS(cudaStreamWaitEvent(streams.second, streams.event, 0));
  emulation::launch(streams.second, [data] { data[0] *= 2; });
  EXPECT_SUCCESS(cudaEventRecord(joined, streams.second));
  EXPECT_SUCCESS(cudaStreamWaitEvent(streams.first, joined, 0));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  EXPECT_SUCCESS(cudaStreamEndCapture(streams.first, &graph));
  EXPECT_SUCCESS(cudaGraphInstantiate(&executable, graph, 0));
  for (int launch = 0; launch < 3; ++launch)
    EXPECT_SUCCESS(cudaGraphLaunch(executable, streams.first));
  EXPECT_SUCCESS(cudaStreamSynchronize(streams.first));
  CHECK(data[0] == 14);
  EXPECT_SUCCESS(cudaGraphExecDestroy(executable));
  EXPECT_SUCCESS(cudaGraphDestroy(graph));
  EXPECT_SUCCESS(cudaEventDestroy(joined));
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("an emulated capture is broken by what it forbids, from its own thread and from others") {
  TwoStreams streams;
  void* none = nullptr;
  const auto is_refused = [&none] { return cudaMalloc(&none, 1) == cudaErrorStreamCaptureUnsupported; };
  for (const bool elsewhere : {false, true}) {
    for (const auto mode :
         {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
      CAPTURE(elsewhere);
      CAPTURE(static_cast<int>(mode));
      const bool forbids =
          mode == cudaStreamCaptureModeGlobal || (mode == cudaStreamCaptureModeThreadLocal && !elsewhere);
      EXPECT_SUCCESS(cudaStreamBeginCapture(streams.first, mode));
      emulation::launch(streams.first, [] {});
      if (forbids) {
        bool refused = false;
        if (elsewhere) {
          std::thread([&] { refused = is_refused(); }).join();
        } else {
          refused = is_refused();
        }
        CHECK(refused);
      }
      cudaGraph_t graph = nullptr;
      const cudaError_t ended = cudaStreamEndCapture(streams.first, &graph);
      CHECK(ended == (forbids ? cudaErrorStreamCaptureInvalidated : cudaSuccess));
      if (graph != nullptr) EXPECT_SUCCESS(cudaGraphDestroy(graph));
    }
  }
  EXPECT_SUCCESS(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeRelaxed));
  EXPECT_SUCCESS(cudaEventRecord(streams.event, streams.first));
  CHECK(cudaEventQuery(streams.event) == cudaErrorCapturedEvent);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(streams.first, &graph) == cudaErrorStreamCaptureInvalidated);
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("an emulated capture that a stream has not come back from is refused") {
  TwoStreams streams;
  EXPECT_SUCCESS(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeGlobal));
  EXPECT_SUCCESS(cudaEventRecord(streams.event, streams.first));
  EXPECT_SUCCESS(cudaStreamWaitEvent(streams.second, streams.event, 0));
  emulation::launch(streams.second, [] {});
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(streams.first, &graph) == cudaErrorStreamCaptureUnjoined);
  static_cast<void>(cudaGetLastError());
}
