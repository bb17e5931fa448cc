#include <cuda.h>

#include "unit/cuda/prelude.hpp"

namespace {

struct Reset {
  ~Reset() { emulation::reset(); }
};

CUresult device_is_active(int device) {
  void* function = nullptr;
  EXPECT_SUCCESS(
      cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 12000, cudaEnableDefault, nullptr));
  unsigned int flags = 0;
  int active = 0;
  return reinterpret_cast<CUresult (*)(CUdevice, unsigned int*, int*)>(function)(device, &flags, &active);
}

CUresult write_value(cudaStream_t stream, void* word) {
  void* function = nullptr;
  EXPECT_SUCCESS(
      cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &function, 12000, cudaEnableDefault, nullptr));
  using WriteValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
  return reinterpret_cast<WriteValue>(function)(stream, reinterpret_cast<CUdeviceptr>(word), 1, 0);
}

}  // namespace

TEST_CASE("every call that needs a broken emulated device fails, for ever and in every thread") {
  const Reset reset;
  emulation::set_device_count(2);
  EXPECT_SUCCESS(cudaSetDevice(1));
  {
    TwoStreams streams;
    EXPECT_SUCCESS(cudaEventRecord(streams.event, streams.first));
    CHECK(write_value(streams.first, streams.memory) == CUDA_SUCCESS);
    emulation::break_device(1);
    const auto check_calls = [&] {
      for (int round = 0; round < 2; ++round) {
        CHECK(cudaFree(nullptr) == cudaErrorIllegalAddress);
        CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
        CHECK(cudaStreamQuery(cudaStreamLegacy) == cudaErrorIllegalAddress);
        CHECK(cudaStreamQuery(streams.first) == cudaErrorIllegalAddress);
        CHECK(cudaStreamSynchronize(streams.first) == cudaErrorIllegalAddress);
        CHECK(cudaEventQuery(streams.event) == cudaErrorIllegalAddress);
        CHECK(cudaEventRecord(streams.event, streams.first) == cudaErrorIllegalAddress);
        CHECK(cudaMemsetAsync(streams.memory, 0, 4, streams.first) == cudaErrorIllegalAddress);
        void* memory = nullptr;
        CHECK(cudaMalloc(&memory, 100) == cudaErrorIllegalAddress);
        CHECK(write_value(streams.first, streams.memory) == CUDA_ERROR_ILLEGAL_ADDRESS);
        CHECK(cudaGetLastError() == cudaErrorIllegalAddress);  // which forgets no error that stays
        CHECK(cudaPeekAtLastError() == cudaErrorIllegalAddress);
      }
    };
    check_calls();
    std::thread([&] {
      CHECK(cudaStreamQuery(streams.first) == cudaErrorIllegalAddress);  // whatever device the thread has
      CHECK(cudaEventSynchronize(streams.event) == cudaErrorIllegalAddress);
      CHECK(cudaDeviceSynchronize() == cudaSuccess);
      CHECK(cudaSetDevice(1) == cudaErrorIllegalAddress);
      check_calls();
    }).join();

    int device = -1;
    CHECK(cudaGetDevice(&device) == cudaSuccess);
    CHECK(device == 1);
    CHECK(device_is_active(1) == CUDA_SUCCESS);
    CHECK(cudaSetDevice(0) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    static_cast<void>(cudaGetLastError());
    CHECK(cudaGetLastError() == cudaSuccess);
    emulation::reset();
  }
}

TEST_CASE("an emulated device that breaks ends a call that waits for it") {
  const Reset reset;
  emulation::set_device_count(1);
  EXPECT_SUCCESS(cudaSetDevice(0));
  TwoStreams streams;
  std::atomic<bool> may_go_on{false};
  emulation::launch(streams.first, [&] {
    while (!may_go_on)
      std::this_thread::yield();
  });
  std::thread breaking([&] {
    while (emulation::host_waits() == 0)
      std::this_thread::yield();
    emulation::break_device(0);
    may_go_on = true;
  });
  CHECK(cudaStreamSynchronize(streams.first) == cudaErrorIllegalAddress);
  breaking.join();
  emulation::reset();
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("a rank with a broken emulated device can abort, and the other ranks' operations wait for it") {
  const Reset reset;
  std::atomic<bool> has_broken{false};
  run_emulated_ranks(2, [&](EmulatedRank& rank) {
    float* const data = rank.on_device(std::vector<float>(10, 1));
    const auto reduce = [&] {
      return ncclAllReduce(data, data, 10, ncclFloat32, ncclSum, rank.communicator, rank.stream);
    };
    rank.taken(reduce());
    EXPECT_SUCCESS(cudaStreamSynchronize(rank.stream));
    if (rank.rank == 0) {
      rank.taken(reduce());
      while (!has_broken)
        std::this_thread::yield();
      CHECK(cudaStreamQuery(rank.stream) == cudaErrorNotReady);
      EXPECT_SUCCESS(ncclCommAbort(rank.communicator));
      rank.communicator = nullptr;
      EXPECT_SUCCESS(cudaStreamSynchronize(rank.stream));
      return;
    }
    emulation::break_device(1);
    CHECK(reduce() == ncclUnhandledCudaError);
    ncclComm_t next = nullptr;
    CHECK(support::begin_init(&next, 2, ncclUniqueId{}, 1) == ncclUnhandledCudaError);
    has_broken = true;
    CHECK(ncclCommAbort(rank.communicator) == ncclUnhandledCudaError);
    rank.communicator = nullptr;
    CHECK(ncclCommAbort(next) == ncclSuccess);
  });
}
