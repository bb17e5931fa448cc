#include "unit/cuda/prelude.hpp"

namespace {

struct Reset {
  ~Reset() { emulation::reset(); }
};

constexpr std::size_t pool_bytes = 34'209'792;

void wait_for(const std::atomic<bool>& event) {
  while (!event)
    std::this_thread::yield();
}

ncclResult_t begin_reduce(EmulatedRank& rank, float* data) {
  return ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, rank.communicator, rank.stream);
}

/// Whether the communicator is still in progress a while later.
bool stays_in_progress(ncclComm_t communicator) {
  std::this_thread::sleep_for(50ms);
  ncclResult_t state = ncclSuccess;
  for (int polls = 0; polls < 3; ++polls)
    EXPECT_SUCCESS(ncclCommGetAsyncError(communicator, &state));
  return state == ncclInProgress;
}

}  // namespace

TEST_CASE("a launch over the network beyond what the emulated proxy holds hangs until an operation ends") {
  constexpr int most = 48;
  for (const bool is_network : {true, false}) {
    CAPTURE(is_network);
    const Reset reset;
    emulation::set_devices_per_host(is_network ? 1 : 0);
    emulation::limit_operations_in_flight(most);
    std::atomic<bool> has_hung{false};
    run_emulated_ranks(2, [&](EmulatedRank& rank) {
      float* const data = rank.on_device(std::vector<float>{1});
      rank.taken(begin_reduce(rank, data));  // connects
      EXPECT_SUCCESS(cudaStreamSynchronize(rank.stream));
      if (rank.rank == 1) {
        wait_for(has_hung);
        for (int operation = 0; operation <= most; ++operation)
          rank.taken(begin_reduce(rank, data));
      } else {
        for (int operation = 0; operation < most; ++operation)
          rank.taken(begin_reduce(rank, data));
        CHECK(begin_reduce(rank, data) == ncclInProgress);
        CHECK(stays_in_progress(rank.communicator) == is_network);
        has_hung = true;
        CHECK(settled(rank.communicator) == ncclSuccess);
      }
      EXPECT_SUCCESS(cudaStreamSynchronize(rank.stream));
      rank.finalize();
    });
  }
}

TEST_CASE("an abort does not wake a launch that the emulated proxy holds up, and waits for it") {
  const Reset reset;
  emulation::set_devices_per_host(1);
  emulation::limit_operations_in_flight(3);
  std::atomic<bool> has_aborted{false};
  run_emulated_ranks(2, [&](EmulatedRank& rank) {
    float* const data = rank.on_device(std::vector<float>{1});
    rank.taken(begin_reduce(rank, data));
    EXPECT_SUCCESS(cudaStreamSynchronize(rank.stream));
    if (rank.rank == 1) return wait_for(has_aborted);
    for (int operation = 0; operation < 3; ++operation)
      rank.taken(begin_reduce(rank, data));
    CHECK(begin_reduce(rank, data) == ncclInProgress);
    std::thread aborting([&] {
      EXPECT_SUCCESS(ncclCommAbort(rank.communicator));
      has_aborted = true;
    });
    EXPECT_SUCCESS(cudaStreamSynchronize(rank.stream));  // the operations that run do end
    std::this_thread::sleep_for(50ms);
    CHECK_FALSE(has_aborted.load());
    emulation::limit_operations_in_flight(0);
    aborting.join();
    rank.communicator = nullptr;
  });
}

TEST_CASE("emulated communicators over the network take memory of /dev/shm when they connect, until they end") {
  const Reset reset;
  emulation::limit_shared_memory(2 * pool_bytes);
  for (const bool is_network : {false, true}) {
    CAPTURE(is_network);
    emulation::set_devices_per_host(is_network ? 1 : 0);
    std::barrier both(2);
    run_emulated_ranks(2, [&](EmulatedRank& rank) {
      float* const data = rank.on_device(std::vector<float>{1});
      both.arrive_and_wait();
      CHECK(emulation::shared_memory_taken() == 0);
      both.arrive_and_wait();
      rank.taken(begin_reduce(rank, data));
      both.arrive_and_wait();
      CHECK(emulation::shared_memory_taken() == (is_network ? 2 * pool_bytes : 0));
      both.arrive_and_wait();
      rank.finalize();
    });
    CHECK(emulation::shared_memory_taken() == 0);
  }
}

TEST_CASE("an emulated communicator that /dev/shm has no room for fails with ncclSystemError when it connects") {
  const Reset reset;
  emulation::set_devices_per_host(1);
  emulation::limit_shared_memory(pool_bytes);
  std::atomic<int> failed{0};
  run_emulated_ranks(2, [&](EmulatedRank& rank) {
    float* const data = rank.on_device(std::vector<float>{1});
    CHECK(begin_reduce(rank, data) == ncclInProgress);
    const ncclResult_t result = settled(rank.communicator);
    if (result == ncclSuccess) return;
    CHECK(result == ncclSystemError);
    CHECK(contains(ncclGetLastError(rank.communicator), "/dev/shm"));
    ++failed;
  });
  CHECK(failed.load() == 1);
}
