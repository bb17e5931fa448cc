#include "unit/cuda/prelude.hpp"

namespace {

struct Reset {
  ~Reset() { emulation::reset(); }
};

/// Both ranks reduce and broadcast, which connects them; then rank 0 reduces, rank 1 broadcasts.
void disagree(EmulatedRank& rank) {
  float* const data = rank.on_device(std::vector<float>(10, 1));
  rank.taken(ncclAllReduce(data, data, 10, ncclFloat32, ncclSum, rank.communicator, rank.stream));
  rank.taken(ncclBroadcast(data, data, 10, ncclFloat32, 0, rank.communicator, rank.stream));
  static_cast<void>(rank.rank == 0 ? ncclAllReduce(data, data, 10, ncclFloat32, ncclSum, rank.communicator, rank.stream)
                                   : ncclBroadcast(data, data, 10, ncclFloat32, 0, rank.communicator, rank.stream));
  static_cast<void>(settled(rank.communicator));  // an error may have come already
}

/// Issues an all_reduce of `count` elements; what becomes of it shows later.
void reduce(EmulatedRank& rank, std::size_t count) {
  float* const data = rank.on_device(std::vector<float>(count, 1));
  static_cast<void>(ncclAllReduce(data, data, count, ncclFloat32, ncclSum, rank.communicator, rank.stream));
  static_cast<void>(settled(rank.communicator));  // an error may have come already
}

ncclResult_t error_of(EmulatedRank& rank) {
  ncclResult_t state = ncclSuccess;
  while (state == ncclSuccess || state == ncclInProgress)
    EXPECT_SUCCESS(ncclCommGetAsyncError(rank.communicator, &state));
  return state;
}

bool stays_busy(EmulatedRank& rank) {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return cudaStreamQuery(rank.stream) == cudaErrorNotReady;
}

/// Aborts, after which the stream comes to its end.
void abort(EmulatedRank& rank) {
  EXPECT_SUCCESS(ncclCommAbort(rank.communicator));
  rank.communicator = nullptr;
  EXPECT_SUCCESS(cudaStreamSynchronize(rank.stream));
}

}  // namespace

TEST_CASE("an emulated initialisation that never completes can be aborted") {
  const Reset reset;
  emulation::set_device_count(1);
  emulation::init_never_completes(true);
  ncclUniqueId id{};
  EXPECT_SUCCESS(ncclGetUniqueId(&id));
  ncclComm_t communicator = nullptr;
  CHECK(support::begin_init(&communicator, 1, id, 0) == ncclInProgress);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ncclResult_t state = ncclSuccess;
  EXPECT_SUCCESS(ncclCommGetAsyncError(communicator, &state));
  CHECK(state == ncclInProgress);
  CHECK(ncclCommAbort(communicator) == ncclSuccess);
}

TEST_CASE("emulated ranks that miss one can be aborted") {
  const Reset reset;
  emulation::set_device_count(1);
  ncclUniqueId id{};
  EXPECT_SUCCESS(ncclGetUniqueId(&id));
  ncclComm_t communicator = nullptr;
  CHECK(support::begin_init(&communicator, 2, id, 0) == ncclInProgress);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(ncclCommAbort(communicator) == ncclSuccess);
}

TEST_CASE("an asynchronous error is reported by its rank, and all hang until they are aborted") {
  const Reset reset;
  emulation::fault_in_operation(emulation::Fault::async_error, 2, 1);
  run_emulated_ranks(2, [](EmulatedRank& rank) {
    reduce(rank, 10);
    reduce(rank, 10);
    if (rank.rank == 1) CHECK(error_of(rank) == ncclRemoteError);
    CHECK(stays_busy(rank));
    abort(rank);
  });
}

TEST_CASE("emulated collectives that do not fit together hang, as NCCL's do") {
  const Reset reset;
  run_emulated_ranks(2, [](EmulatedRank& rank) {
    disagree(rank);
    CHECK(stays_busy(rank));
    abort(rank);
  });
}

TEST_CASE("emulated ranks that reduce different counts go on, as NCCL's do") {
  const Reset reset;
  run_emulated_ranks(2, [](EmulatedRank& rank) {
    for (int step = 0; step < 3; ++step)
      reduce(rank, rank.rank == 0 ? 10 : 11);
    EXPECT_SUCCESS(cudaStreamSynchronize(rank.stream));
    rank.finalize();
  });
}

TEST_CASE("emulated collectives that do not fit together are reported where a test wants it") {
  const Reset reset;
  emulation::set_mismatch(emulation::Mismatch::report);
  run_emulated_ranks(2, [](EmulatedRank& rank) {
    disagree(rank);
    CHECK(error_of(rank) == ncclInvalidUsage);
    abort(rank);
  });
}

TEST_CASE("two emulated ranks on one device are refused, unless NCCL is told to allow them") {
  const Reset reset;
  for (const bool allowed : {false, true}) {
    CAPTURE(allowed);
    allowed ? ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1) : ::unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    emulation::set_device_count(1);
    ncclUniqueId id{};
    EXPECT_SUCCESS(ncclGetUniqueId(&id));
    support::run_thread_ranks(2, [&](support::RankThread& self) {
      ncclComm_t communicator = nullptr;
      support::begin_init(&communicator, 2, id, self.rank());
      CHECK(settled(communicator) == (allowed ? ncclSuccess : ncclInvalidUsage));
      const std::string text = ncclGetLastError(communicator);
      CHECK((text.find("Duplicate GPU detected") == std::string::npos) == allowed);
      EXPECT_SUCCESS(ncclCommAbort(communicator));
    });
  }
  ::unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

TEST_CASE("a call before the last one has been taken is refused") {
  const Reset reset;
  emulation::set_polls_in_progress(3);
  run_emulated_ranks(2, [](EmulatedRank& rank) {
    float* const data = rank.on_device(std::vector<float>{1});
    const auto call = [&] {
      return ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, rank.communicator, rank.stream);
    };
    CHECK(call() == ncclInProgress);
    CHECK(call() == ncclInvalidArgument);
    CHECK(settled(rank.communicator) == ncclSuccess);
    rank.taken(call());
    rank.finalize();
  });
}

TEST_CASE("an emulated non-blocking operation is in progress until all ranks have called the first of its algorithm") {
  const Reset reset;
  constexpr std::size_t large = 100'000;
  std::atomic<int> called{0};
  run_emulated_ranks(2, [&](EmulatedRank& rank) {
    float* const data = rank.on_device(std::vector<float>(large, 1));
    for (const std::size_t count : {std::size_t{10}, large}) {  // two algorithms
      if (rank.rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ++called;
      }
      const auto call = [&] {
        return ncclAllReduce(data, data, count, ncclFloat32, ncclSum, rank.communicator, rank.stream);
      };
      CHECK(call() == ncclInProgress);
      CHECK(settled(rank.communicator) == ncclSuccess);
      CHECK(called.load() >= (count == large ? 2 : 1));
      EXPECT_SUCCESS(cudaStreamSynchronize(rank.stream));
    }
    if (rank.rank == 0) {  // alone: nobody needs to be waited for
      rank.taken(ncclAllReduce(data, data, 10, ncclFloat32, ncclSum, rank.communicator, rank.stream));
      CHECK(stays_busy(rank));
      ++called;
    }
    while (called.load() < 3)
      std::this_thread::yield();
    abort(rank);
  });
}

TEST_CASE("the first of an emulated algorithm allocates, which a capture in global mode forbids") {
  const Reset reset;
  for (const auto mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    CAPTURE(static_cast<int>(mode));
    std::atomic<int> ready{0};
    run_emulated_ranks(2, [&](EmulatedRank& rank) {
      float* const data = rank.on_device(std::vector<float>(10, 1));
      ++ready;
      while (ready.load() < 2)
        std::this_thread::yield();
      const auto call = [&] {
        return ncclAllReduce(data, data, 10, ncclFloat32, ncclSum, rank.communicator, rank.stream);
      };
      cudaGraph_t graph = nullptr;
      if (rank.rank == 0) EXPECT_SUCCESS(cudaStreamBeginCapture(rank.stream, mode));
      ++ready;
      while (ready.load() < 4)
        std::this_thread::yield();
      const ncclResult_t result = call() == ncclInProgress ? settled(rank.communicator) : ncclInternalError;
      ++ready;
      while (ready.load() < 6)
        std::this_thread::yield();
      if (mode == cudaStreamCaptureModeGlobal) {
        if (rank.rank == 0) CHECK(result == ncclUnhandledCudaError);
        if (rank.rank == 0) CHECK(cudaStreamEndCapture(rank.stream, &graph) == cudaErrorStreamCaptureInvalidated);
      } else {
        CHECK(result == ncclSuccess);
        if (rank.rank == 0) EXPECT_SUCCESS(cudaStreamEndCapture(rank.stream, &graph));
        if (graph != nullptr) EXPECT_SUCCESS(cudaGraphDestroy(graph));
      }
      abort(rank);
    });
  }
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("an emulated call fails where a test wants it, on the device that it names") {
  const Reset reset;
  emulation::fail("ncclAllReduce", 2, ncclSystemError, 1);
  run_emulated_ranks(2, [](EmulatedRank& rank) {
    reduce(rank, 4);
    float* const data = rank.on_device(std::vector<float>{1});
    const ncclResult_t result = ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, rank.communicator, rank.stream);
    CHECK(result == (rank.rank == 1 ? ncclSystemError : ncclInProgress));
    abort(rank);
  });
}
