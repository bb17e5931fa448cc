#pragma once
/// @file
/// Ranks of the emulated NCCL as threads of a test, each with a device, a stream and a communicator.

#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "emulation/emulation.hpp"
#include "support/thread_ranks.hpp"

namespace support {

/// Throws unless a call of CUDA or NCCL gave 0.
inline void expect_success(int result, const char* what) {
  if (result != 0) throw std::runtime_error(std::string(what) + " gave " + std::to_string(result));
}
#define EXPECT_SUCCESS(call) ::support::expect_success(call, #call)

/// What the communicator comes to when nothing is in progress any more.
inline ncclResult_t settled(ncclComm_t communicator) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress)
    EXPECT_SUCCESS(ncclCommGetAsyncError(communicator, &state));
  return state;
}

inline ncclResult_t begin_init(ncclComm_t* communicator, int size, const ncclUniqueId& id, int rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return ncclCommInitRankConfig(communicator, size, id, rank, &config);
}

/// The stream and the communicator of the calling thread, on the device that has the rank's number. Its end aborts.
struct EmulatedRank {
  EmulatedRank(int rank_number, int ranks, const ncclUniqueId& id) : rank(rank_number), size(ranks) {
    EXPECT_SUCCESS(cudaSetDevice(rank));
    EXPECT_SUCCESS(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    begin_init(&communicator, size, id, rank);
    EXPECT_SUCCESS(settled(communicator));
  }
  EmulatedRank(const EmulatedRank&) = delete;
  EmulatedRank& operator=(const EmulatedRank&) = delete;
  ~EmulatedRank() {
    if (communicator != nullptr) static_cast<void>(ncclCommAbort(communicator));
    for (void* each : memory)
      static_cast<void>(cudaFree(each));
    static_cast<void>(cudaStreamDestroy(stream));
  }

  template <class T>
  T* on_device(const std::vector<T>& values) {
    void* pointer = nullptr;
    EXPECT_SUCCESS(cudaMalloc(&pointer, values.size() * sizeof(T)));
    memory.push_back(pointer);
    EXPECT_SUCCESS(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return static_cast<T*>(pointer);
  }

  /// Blocking: behind all that the stream was given.
  template <class T>
  std::vector<T> on_host(const T* pointer, std::size_t count) {
    std::vector<T> values(count);
    EXPECT_SUCCESS(cudaMemcpyAsync(values.data(), pointer, count * sizeof(T), cudaMemcpyDeviceToHost, stream));
    return values;
  }

  /// Waits until the call, which was made on a non-blocking communicator, has been taken.
  void taken(ncclResult_t result) {
    if (result == ncclInProgress) result = settled(communicator);
    EXPECT_SUCCESS(result);
  }

  void finalize() {
    static_cast<void>(ncclCommFinalize(communicator));
    EXPECT_SUCCESS(settled(communicator));
    EXPECT_SUCCESS(ncclCommDestroy(communicator));
    communicator = nullptr;
  }

  const int rank;
  const int size;
  cudaStream_t stream = nullptr;
  ncclComm_t communicator = nullptr;
  std::vector<void*> memory;
};

/// Runs `body(EmulatedRank&)` as that many threads.
inline void run_emulated_ranks(int ranks, const std::function<void(EmulatedRank&)>& body) {
  emulation::set_device_count(ranks);
  ncclUniqueId id{};
  EXPECT_SUCCESS(ncclGetUniqueId(&id));
  run_thread_ranks(ranks, [&](RankThread& self) {
    EmulatedRank rank(self.rank(), ranks, id);
    body(rank);
  });
}

}  // namespace support
