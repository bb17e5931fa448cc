#include "dtrain/core/config.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "support/cuda_training_rank.hpp"

namespace {

using dtrain::Step;
using support::check;
using support::CudaTrainingRank;
using support::FakeJob;
using support::RankThread;
using support::run_thread_ranks;

/// Owns an executable graph.
class Graph {
 public:
  explicit Graph(cudaGraph_t graph) {
    check(cudaGraphInstantiate(&graph_, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { (void)dtrain::stream::cuda::quiet(cudaGraphExecDestroy(graph_)); }
  void launch(support::StreamRef stream) const { check(cudaGraphLaunch(graph_, stream.native()), "cudaGraphLaunch"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

/// Backward pass, reduction and what reads the result, on one stream or more: only the first one begins the capture.
void one_step(CudaTrainingRank& rank) {
  Step step = rank.reducer->begin();
  for (std::size_t i = rank.count(); i-- > 0;) {
    rank.compute(i, rank.stream());
    step.ready(i, rank.stream().handle());
  }
  step.finish();
  for (std::size_t i = 0; i < rank.count(); ++i)
    rank.use(i, rank.stream());
}

/// @param warm_up steps before the captured one
void expect_replays(int ranks, bool bound, int warm_up, cudaStreamCaptureMode mode) {
  const auto job = std::make_shared<FakeJob>(ranks);
  std::atomic<int> wrong{0};
  std::atomic<int> planned_again{0};
  run_thread_ranks(ranks, [&](RankThread& self) {
    CudaTrainingRank::Wanted wanted{.caps = {256, 2048}, .bound = bound};
    wanted.options.device_times = true;
    std::vector<dtrain::Parameter>* parameters = nullptr;
    wanted.options.bucket_bytes = 0;
    wanted.parts.rebuild = {[&](const std::vector<std::size_t>&) {
                              ++planned_again;
                              return std::vector<std::size_t>{1, 0, 3, 2};
                            },
                            [&](std::size_t i, const dtrain::TensorView& view) { (*parameters)[i].gradient = view; }};
    CudaTrainingRank rank(job, self.rank(), ranks, wanted);
    parameters = &rank.parameters;
    self.doing("warming up");
    for (int step = 0; step < warm_up; ++step)
      one_step(rank);
    wrong += rank.wait() ? 0 : 1;
    self.doing("capturing");
    check(cudaStreamBeginCapture(rank.stream().native(), mode), "cudaStreamBeginCapture");
    one_step(rank);
    cudaGraph_t captured = nullptr;
    check(cudaStreamEndCapture(rank.stream().native(), &captured), "cudaStreamEndCapture");
    const Graph graph(captured);
    self.doing("replaying");
    for (int replay = 1; replay <= 3; ++replay) {
      for (std::size_t i = 0; i < rank.count(); ++i)
        rank.prepare(i, static_cast<float>(replay * 10 + 2 * self.rank()));
      graph.launch(rank.stream());
      wrong += rank.wait() ? 0 : 1;
      const float mean = static_cast<float>(replay * 10 + ranks - 1);
      for (std::size_t i = 0; i < rank.count(); ++i)
        wrong += rank.result(i) == std::vector<float>(rank.size(i), mean) ? 0 : 1;
    }
    self.doing("stepping without the graph");
    for (std::size_t i = 0; i < rank.count(); ++i)
      rank.prepare(i, static_cast<float>(2 * self.rank()));
    one_step(rank);
    wrong += rank.wait() ? 0 : 1;
    wrong += rank.result(0) == std::vector<float>(rank.size(0), static_cast<float>(ranks - 1)) ? 0 : 1;
    const auto measured = rank.reducer->statistics().measured_steps;  // not the one that became a graph
    wrong += measured >= 1 && measured <= static_cast<std::uint64_t>(warm_up + 1) ? 0 : 1;
  });
  CHECK(wrong == 0);
  CHECK(planned_again == (warm_up > 0 ? ranks : 0));  // what a graph has addresses of does not move
}

}  // namespace

TEST_CASE("a step that was captured in a CUDA graph reduces whenever it is replayed") {
  for (const int ranks : {1, 2, 4}) {
    if (!support::enough_devices(ranks)) {
      dtrain_test::skip("there is no device for each rank");
      continue;
    }
    for (const bool bound : {false, true}) {
      CAPTURE(ranks);
      CAPTURE(bound);
      expect_replays(ranks, bound, 1, cudaStreamCaptureModeThreadLocal);
    }
  }
}

TEST_CASE("the first step may be the captured one, and then nothing moves") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  expect_replays(2, true, 0, cudaStreamCaptureModeThreadLocal);
}

TEST_CASE("nothing that a capture forbids is called in a step, whatever the capture's mode") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    CAPTURE(static_cast<int>(mode));
    expect_replays(1, true, 2, mode);
  }
}
