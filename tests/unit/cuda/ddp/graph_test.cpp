#include "unit/cuda/prelude.hpp"

namespace {

/// Whether so many ranks may be threads that capture: on real devices graphs of one process may deadlock there (NCCL's
/// user guide, "Using NCCL with CUDA Graphs"), and integration.nccl has them as processes.
bool may_be_threads(int ranks) {
#if !DTRAIN_EMULATED_CUDA
  if (ranks > 1) {
    dtrain_test::skip("ranks that capture on real devices are processes: see integration.nccl");
    return false;
  }
#endif
  if (!support::enough_devices(ranks)) {
    dtrain_test::skip("there is no device for each rank");
    return false;
  }
  return true;
}

void expect_replays(int ranks, const GraphReplays& replays) {
  const auto job = std::make_shared<FakeJob>(ranks);
  std::atomic<int> wrong{0};
  std::atomic<int> planned_again{0};
  std::barrier phases(ranks);
  run_thread_ranks(ranks, [&](RankThread& self) {
    const auto open = [&] { return NcclRank(job, self.rank(), ranks, "ddp"); };
    const auto outcome = replays.run(self.rank(), ranks, open, [&](const char* phase) {
      self.doing(phase);
      phases.arrive_and_wait();  // a capture in global mode forbids calls of the other ranks, which are processes else
    });
    wrong += outcome.wrong;
    planned_again += outcome.rebuilds;
  });
  CHECK(wrong == 0);
  CHECK(planned_again == (replays.warm_up > 0 ? ranks : 0));
}

}  // namespace

TEST_CASE("a step that was captured in a CUDA graph reduces whenever it is replayed") {
  for (const int ranks : {1, 2, 4}) {
    if (!may_be_threads(ranks)) continue;
    for (const bool bound : {false, true}) {
      for (const bool casts : {false, true}) {
        CAPTURE(ranks);
        CAPTURE(bound);
        CAPTURE(casts);
        expect_replays(ranks, {.bound = bound, .casts = casts});
      }
    }
  }
}

TEST_CASE("the first step may be the captured one, whatever the capture's mode, and then nothing moves") {
  if (!may_be_threads(2)) return;
  for (const cudaStreamCaptureMode mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
    CAPTURE(static_cast<int>(mode));
    for (const bool bound : {false, true}) {
      CAPTURE(bound);
      expect_replays(2, {.bound = bound, .warm_up = 0, .mode = mode});
      expect_replays(2, {.bound = bound, .casts = true, .warm_up = 0, .mode = mode});
    }
  }
}

TEST_CASE("nothing that a capture forbids is called in a step, whatever the capture's mode") {
  if (!may_be_threads(1)) return;
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    CAPTURE(static_cast<int>(mode));
    for (const bool bound : {false, true}) {
      CAPTURE(bound);
      expect_replays(1, {.bound = bound, .warm_up = 2, .mode = mode});
      expect_replays(1, {.bound = bound, .warm_up = 0, .mode = mode});
      expect_replays(1, {.bound = bound, .casts = true, .warm_up = 0, .mode = mode});
    }
  }
}
