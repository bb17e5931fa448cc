#include "unit/cuda/prelude.hpp"

namespace {

struct Reset {
  ~Reset() { emulation::reset(); }
};

void wait_for(const std::atomic<bool>& event) {
  while (!event)
    std::this_thread::yield();
}

/// Of the rank's communicator, which is non-blocking: begins a split whose part is blocking. The child is written late.
ncclResult_t begin_split(EmulatedRank& rank, ncclComm_t& child) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  return ncclCommSplit(rank.communicator, 0, rank.rank, &child, &config);
}

ncclComm_t blocking_child(EmulatedRank& rank) {
  ncclComm_t child = nullptr;
  EXPECT_SUCCESS(begin_split(rank, child));
  EXPECT_SUCCESS(settled(rank.communicator));
  while (std::atomic_ref(child).load() == nullptr)
    std::this_thread::yield();
  EXPECT_SUCCESS(settled(child));
  return child;
}

ncclResult_t reduce(float* data, ncclComm_t communicator, cudaStream_t stream) {
  return ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, communicator, stream);
}

/// The call, in a thread, which tells when it has returned.
class Call {
 public:
  template <class Body>
  explicit Call(Body body)
      : thread_([this, body] {
          result_ = body();
          has_returned_ = true;
        }) {}
  ~Call() { thread_.join(); }
  bool returns_within(std::chrono::milliseconds patience) const {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (!has_returned_ && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(1ms);
    return has_returned_;
  }
  ncclResult_t result() const {
    wait_for(has_returned_);
    return result_;
  }

 private:
  std::atomic<bool> has_returned_{false};
  std::atomic<ncclResult_t> result_{ncclInProgress};
  std::thread thread_;
};

}  // namespace

TEST_CASE("an emulated blocking child of a non-blocking parent launches in its caller, and the parent in a thread") {
  const Reset reset;
  emulation::set_polls_in_progress(3);
  run_emulated_ranks(2, [](EmulatedRank& rank) {
    ncclComm_t child = blocking_child(rank);
    float* const data = rank.on_device(std::vector<float>{1});
    for (int round = 0; round < 3; ++round)
      CHECK(reduce(data, child, rank.stream) == ncclSuccess);
    CHECK(reduce(data, rank.communicator, rank.stream) == ncclInProgress);
    CHECK(settled(rank.communicator) == ncclSuccess);
    CHECK(rank.on_host(data, 1) == std::vector<float>{16});
    EXPECT_SUCCESS(ncclCommFinalize(child));
    EXPECT_SUCCESS(ncclCommDestroy(child));
    rank.finalize();
  });
}

TEST_CASE(
    "a split of an emulated non-blocking parent that a rank does not come to is in progress, and can be aborted") {
  const Reset reset;
  std::atomic<bool> is_done{false};
  run_emulated_ranks(2, [&](EmulatedRank& rank) {
    if (rank.rank == 1) return wait_for(is_done);
    ncclComm_t child = nullptr;
    CHECK(begin_split(rank, child) == ncclSuccess);
    std::this_thread::sleep_for(50ms);
    ncclResult_t state = ncclSuccess;
    EXPECT_SUCCESS(ncclCommGetAsyncError(rank.communicator, &state));
    CHECK(state == ncclInProgress);
    is_done = true;  // an abort waits for the other rank's
    EXPECT_SUCCESS(ncclCommAbort(rank.communicator));
    rank.communicator = nullptr;
    CHECK(child == nullptr);
  });
}

TEST_CASE("the first call on an emulated blocking child holds its caller until all ranks have made it") {
  const Reset reset;
  std::atomic<bool> has_blocked{false};
  run_emulated_ranks(2, [&](EmulatedRank& rank) {
    ncclComm_t child = blocking_child(rank);
    float* const data = rank.on_device(std::vector<float>{1});
    if (rank.rank == 1) wait_for(has_blocked);
    const Call call([&] {
      EXPECT_SUCCESS(cudaSetDevice(rank.rank));
      return reduce(data, child, rank.stream);
    });
    if (rank.rank == 0) {
      CHECK_FALSE(call.returns_within(50ms));
      has_blocked = true;
    }
    CHECK(call.result() == ncclSuccess);
    CHECK(rank.on_host(data, 1) == std::vector<float>{2});
    EXPECT_SUCCESS(ncclCommAbort(child));
  });
}

TEST_CASE("a later call on an emulated blocking child returns while another rank hangs, and an abort ends its work") {
  const Reset reset;
  std::atomic<bool> has_aborted{false};
  run_emulated_ranks(2, [&](EmulatedRank& rank) {
    ncclComm_t child = blocking_child(rank);
    float* const data = rank.on_device(std::vector<float>{1});
    CHECK(reduce(data, child, rank.stream) == ncclSuccess);
    EXPECT_SUCCESS(cudaStreamSynchronize(rank.stream));
    if (rank.rank == 0) {
      CHECK(reduce(data, child, rank.stream) == ncclSuccess);
      std::this_thread::sleep_for(20ms);
      CHECK(cudaStreamQuery(rank.stream) == cudaErrorNotReady);
      has_aborted = true;  // an abort waits for the other rank's
    }
    wait_for(has_aborted);
    EXPECT_SUCCESS(ncclCommAbort(child));
    EXPECT_SUCCESS(cudaStreamSynchronize(rank.stream));
  });
}

TEST_CASE("a launch that hangs holds the caller of an emulated blocking child, and a thread of the parent's") {
  const Reset reset;
  std::atomic<bool> has_hung{false};
  run_emulated_ranks(2, [&](EmulatedRank& rank) {
    ncclComm_t child = blocking_child(rank);
    float* const data = rank.on_device(std::vector<float>{1});
    CHECK(reduce(data, child, rank.stream) == ncclSuccess);
    rank.taken(reduce(data, rank.communicator, rank.stream));
    EXPECT_SUCCESS(cudaStreamSynchronize(rank.stream));
    if (rank.rank == 0) {
      emulation::hold_launches(true);
      const Call call([&] {
        EXPECT_SUCCESS(cudaSetDevice(0));
        return reduce(data, child, rank.stream);
      });
      while (emulation::launches_held() < 1)
        std::this_thread::yield();
      CHECK_FALSE(call.returns_within(50ms));
      emulation::hold_launches(false);
      CHECK(call.result() == ncclSuccess);
      emulation::hold_launches(true);
      CHECK(reduce(data, rank.communicator, rank.stream) == ncclInProgress);
      emulation::hold_launches(false);
      CHECK(settled(rank.communicator) == ncclSuccess);
      has_hung = true;
    } else {
      wait_for(has_hung);
      CHECK(reduce(data, child, rank.stream) == ncclSuccess);
      rank.taken(reduce(data, rank.communicator, rank.stream));
    }
    CHECK(rank.on_host(data, 1) == std::vector<float>{16});
    EXPECT_SUCCESS(ncclCommAbort(child));
  });
}
