#include "unit/cuda/prelude.hpp"

#if DTRAIN_EMULATED_CUDA

namespace {

struct Training {
  bool bound = false;
  bool measures_norm = false;
};

/// Calls of the CUDA runtime and driver that a rank's thread makes in a step, once the first ones are over. NCCL's own
/// are not among them.
int calls_of_step(std::size_t buckets, const Training& training) {
  const EmulatedDevices emulated(2);
  const auto job = std::make_shared<FakeJob>(2);
  int calls = 0;
  run_thread_ranks(2, [&](RankThread& self) {
    CudaTrainingRank rank(job, self.rank(), 2,
                          {.sizes = std::vector<std::size_t>(buckets, 1000), .bound = training.bound});
    for (int step = 0; step < 3; ++step) {
      const int before = emulation::calls_of_thread();
      rank.step({.measure_norm = training.measures_norm});
      if (self.rank() == 0) calls = emulation::calls_of_thread() - before;
      CHECK(rank.wait());
    }
  });
  return calls;
}

}  // namespace

TEST_CASE("a bucket costs its rank's thread few calls of CUDA") {
  struct Bound {
    Training training;
    int most;
  };
  for (const Bound& bound : {Bound{{}, 15}, Bound{{.bound = true}, 5}, Bound{{.measures_norm = true}, 18}}) {
    CAPTURE(bound.training.bound);
    CAPTURE(bound.training.measures_norm);
    const int few = calls_of_step(4, bound.training);
    const int many = calls_of_step(12, bound.training);
    CAPTURE(few);
    constexpr int poll = 12;  // of a channel that has 32 operations in flight
    CHECK(many - few <= 8 * bound.most + poll);
  }
}

#endif  // DTRAIN_EMULATED_CUDA
