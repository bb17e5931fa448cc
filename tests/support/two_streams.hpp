#pragma once
/// @file
/// Two emulated streams and memory that both use.

#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "support/emulated_ranks.hpp"

namespace support {

struct TwoStreams {
  static constexpr std::size_t count = 10'000;

  TwoStreams() {
    EXPECT_SUCCESS(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    EXPECT_SUCCESS(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    EXPECT_SUCCESS(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    EXPECT_SUCCESS(cudaMalloc(&memory, count * sizeof(float)));
  }
  ~TwoStreams() {
    static_cast<void>(cudaFree(memory));
    static_cast<void>(cudaEventDestroy(event));
    static_cast<void>(cudaStreamDestroy(first));
    static_cast<void>(cudaStreamDestroy(second));
  }
  float* shadow() const { return static_cast<float*>(emulation::host_address(memory)); }

  cudaStream_t first = nullptr;
  cudaStream_t second = nullptr;
  cudaEvent_t event = nullptr;
  void* memory = nullptr;
};

/// Writes on one stream, and reads on another behind a wait for the first.
inline float written_and_read(TwoStreams& streams) {
  float* const data = streams.shadow();
  emulation::launch(streams.first, [data] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (std::size_t i = 0; i < TwoStreams::count; ++i)
      data[i] = 7;
  });
  EXPECT_SUCCESS(cudaEventRecord(streams.event, streams.first));
  EXPECT_SUCCESS(cudaStreamWaitEvent(streams.second, streams.event, 0));
  std::vector<float> read(TwoStreams::count);
  EXPECT_SUCCESS(cudaMemcpyAsync(read.data(), streams.memory, TwoStreams::count * sizeof(float), cudaMemcpyDeviceToHost,
                                 streams.second));
  return read[TwoStreams::count - 1];
}

}  // namespace support
