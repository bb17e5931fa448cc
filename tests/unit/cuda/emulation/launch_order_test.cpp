#include "unit/cuda/prelude.hpp"

namespace {

/// As a program begins that sets the variable so, for communicators that are made meanwhile.
struct LaunchOrder : support::ScopedVariable {
  explicit LaunchOrder(const char* value) : ScopedVariable("NCCL_LAUNCH_ORDER_IMPLICIT", value) {}
};

/// Whether the stream's work ends in that time.
bool ends_within(std::chrono::milliseconds patience, cudaStream_t stream) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// A second communicator and stream of the rank's device.
struct Second {
  Second(EmulatedRank& of, const ncclUniqueId& id) : size(of.size) {
    EXPECT_SUCCESS(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    begin_init(&communicator, of.size, id, of.rank);
    EXPECT_SUCCESS(settled(communicator));
  }
  ~Second() {
    static_cast<void>(ncclCommAbort(communicator));
    static_cast<void>(cudaStreamDestroy(stream));
  }
  int size;
  cudaStream_t stream = nullptr;
  ncclComm_t communicator = nullptr;
};

void all_reduce(float* data, ncclComm_t communicator, cudaStream_t stream) {
  static_cast<void>(ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, communicator, stream));
  EXPECT_SUCCESS(settled(communicator));
}

/// Whether rank 0's operation of a second communicator ends in that time behind one of the first that does not start;
/// that one is called, or part of a graph that is replayed.
bool overtakes(bool captured, std::chrono::milliseconds patience) {
  std::atomic<bool> has_ended{false};
  ncclUniqueId id{};
  EXPECT_SUCCESS(ncclGetUniqueId(&id));
  run_emulated_ranks(2, [&](EmulatedRank& rank) {
    Second second(rank, id);
    float* const one = rank.on_device(std::vector<float>{1});
    float* const other = rank.on_device(std::vector<float>{1});
    all_reduce(one, rank.communicator, rank.stream);
    all_reduce(other, second.communicator, second.stream);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    if (captured) {
      EXPECT_SUCCESS(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
      all_reduce(one, rank.communicator, rank.stream);
      EXPECT_SUCCESS(cudaStreamEndCapture(rank.stream, &graph));
      EXPECT_SUCCESS(cudaGraphInstantiate(&executable, graph, 0));
    }
    std::atomic<bool> may_go_on{rank.rank != 0};
    emulation::launch(rank.stream, [&] {
      while (!may_go_on)
        std::this_thread::yield();
    });
    if (captured) {
      EXPECT_SUCCESS(cudaGraphLaunch(executable, rank.stream));
    } else {
      all_reduce(one, rank.communicator, rank.stream);
    }
    all_reduce(other, second.communicator, second.stream);
    if (rank.rank == 0) has_ended = ends_within(patience, second.stream);
    may_go_on = true;
    EXPECT_SUCCESS(cudaStreamSynchronize(rank.stream));
    EXPECT_SUCCESS(cudaStreamSynchronize(second.stream));
    if (captured) {
      EXPECT_SUCCESS(cudaGraphExecDestroy(executable));
      EXPECT_SUCCESS(cudaGraphDestroy(graph));
    }
  });
  static_cast<void>(cudaGetLastError());
  return has_ended;
}

}  // namespace

TEST_CASE(
    "emulated operations of a device's communicators start in the order of their launches, as NCCL's variable says") {
  for (const bool captured : {false, true}) {
    CAPTURE(captured);
    {
      const LaunchOrder ordered("1");
      CHECK_FALSE(overtakes(captured, std::chrono::milliseconds(50)));
    }
    const LaunchOrder free("0");
    CHECK(overtakes(captured, std::chrono::seconds(15)));
  }
}

TEST_CASE("emulated ranks that share a device as threads wait for each other where launches are ordered") {
  const LaunchOrder ordered("1");
  const support::ScopedVariable may_race("NCCL_LAUNCH_RACE_FATAL", "0");
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  emulation::set_device_count(1);
  ncclUniqueId id{};
  EXPECT_SUCCESS(ncclGetUniqueId(&id));
  std::atomic<int> connected{0};
  std::atomic<int> has_launched{0};
  support::run_thread_ranks(2, [&](support::RankThread& self) {
    cudaStream_t stream = nullptr;
    void* data = nullptr;
    ncclComm_t communicator = nullptr;
    EXPECT_SUCCESS(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    EXPECT_SUCCESS(cudaMalloc(&data, sizeof(float)));
    begin_init(&communicator, 2, id, self.rank());
    EXPECT_SUCCESS(settled(communicator));
    all_reduce(static_cast<float*>(data), communicator, stream);
    EXPECT_SUCCESS(cudaStreamSynchronize(stream));
    ++connected;
    while (connected < 2 || has_launched < self.rank())
      std::this_thread::yield();
    for (int operation = 0; operation < 2; ++operation)
      all_reduce(static_cast<float*>(data), communicator, stream);
    ++has_launched;
    while (has_launched < 2)
      std::this_thread::yield();
    CHECK_FALSE(ends_within(std::chrono::milliseconds(50),
                            stream));  // rank 1's first waits for rank 0's second, and that for rank 0's first
    ++has_launched;
    while (has_launched < 4)
      std::this_thread::yield();
    EXPECT_SUCCESS(ncclCommAbort(communicator));
    EXPECT_SUCCESS(cudaStreamSynchronize(stream));
    EXPECT_SUCCESS(cudaStreamDestroy(stream));
  });
  ::unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  emulation::reset();
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("emulated launches of two threads on one device at once are an error, where launches are ordered") {
  for (const char* const fatal : {static_cast<const char*>(nullptr), "1", "0"}) {
    for (const bool is_ordered : {true, false}) {
      CAPTURE(fatal);
      CAPTURE(is_ordered);
      const LaunchOrder order(is_ordered ? "1" : "0");
      const support::ScopedVariable is_fatal("NCCL_LAUNCH_RACE_FATAL", fatal);
      const bool is_error = is_ordered && (fatal == nullptr || std::string(fatal) == "1");
      ncclUniqueId id{};
      EXPECT_SUCCESS(ncclGetUniqueId(&id));
      std::atomic<bool> has_raced{false};
      run_emulated_ranks(2, [&](EmulatedRank& rank) {
        Second second(rank, id);
        float* const one = rank.on_device(std::vector<float>{1});
        float* const other = rank.on_device(std::vector<float>{1});
        all_reduce(one, rank.communicator, rank.stream);
        all_reduce(other, second.communicator, second.stream);
        EXPECT_SUCCESS(cudaStreamSynchronize(second.stream));
        if (rank.rank == 1) {
          while (!has_raced)
            std::this_thread::yield();
          all_reduce(one, rank.communicator, rank.stream);
          all_reduce(other, second.communicator, second.stream);
        } else {
          emulation::hold_launches(true);
          const auto begin = [](float* data, ncclComm_t communicator, cudaStream_t stream) {
            CHECK(ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, communicator, stream) == ncclInProgress);
          };
          begin(one, rank.communicator, rank.stream);
          while (emulation::launches_held() < 1)
            std::this_thread::yield();
          std::thread([&] { begin(other, second.communicator, second.stream); }).join();
          while (emulation::launches_held() < 2)
            std::this_thread::yield();
          emulation::hold_launches(false);
          CHECK(settled(rank.communicator) == (is_error ? ncclInvalidUsage : ncclSuccess));
          CHECK(settled(second.communicator) == ncclSuccess);
          const std::string text = ncclGetLastError(rank.communicator);
          CHECK((text == "Fatal: host threads racing to launch NCCL on same device.") == is_error);
          has_raced = true;
        }
        EXPECT_SUCCESS(cudaStreamSynchronize(rank.stream));  // what has been launched runs
        EXPECT_SUCCESS(cudaStreamSynchronize(second.stream));
      });
    }
  }
  emulation::reset();
}

TEST_CASE("a group of two emulated communicators of a device is launched by one thread") {
  const LaunchOrder ordered("1");
  ncclUniqueId id{};
  EXPECT_SUCCESS(ncclGetUniqueId(&id));
  run_emulated_ranks(2, [&](EmulatedRank& rank) {
    Second second(rank, id);
    float* const data = rank.on_device(std::vector<float>{1});
    for (int round = 0; round < 20; ++round) {
      EXPECT_SUCCESS(ncclGroupStart());
      EXPECT_SUCCESS(ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, rank.communicator, rank.stream));
      EXPECT_SUCCESS(ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, second.communicator, rank.stream));
      CHECK(ncclGroupEnd() == ncclInProgress);
      EXPECT_SUCCESS(settled(rank.communicator));
      EXPECT_SUCCESS(settled(second.communicator));
    }
  });
}
