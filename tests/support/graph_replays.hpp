#pragma once
/// @file
/// A training rank whose step is captured in a CUDA graph, and what its replays reduce.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_NCCL

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "dtrain/core/types/small_floats.hpp"
#include "dtrain/ddp/hooks/cast.hpp"
#include "dtrain/ddp/step.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "support/cuda_training_rank.hpp"

namespace support {

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
  void launch(StreamRef stream) const { check(cudaGraphLaunch(graph_, stream.native()), "cudaGraphLaunch"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

/// What `work` enqueues on the stream and on those that wait for it, as a graph. Throws what `work` throws.
template <class Work>
Graph captured(StreamRef stream, Work work, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
  check(cudaStreamBeginCapture(stream.native(), mode), "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {  // a capture that does not end would forbid calls of later tests
    static_cast<void>(dtrain::stream::cuda::quiet(cudaStreamEndCapture(stream.native(), &graph)));
    if (graph != nullptr) static_cast<void>(dtrain::stream::cuda::quiet(cudaGraphDestroy(graph)));
    throw;
  }
  check(cudaStreamEndCapture(stream.native(), &graph), "cudaStreamEndCapture");
  return Graph(graph);
}

/// Backward pass, reduction and what reads the result.
inline void one_step(CudaTrainingRank& rank) {
  rank.computed_step();
  rank.use_all();
}

struct GraphReplays {
  bool bound = false;
  bool casts = false;  ///< by hooks::Cast
  int warm_up = 1;     ///< steps before the captured one
  cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;

  struct Outcome {
    int wrong = 0;
    int rebuilds = 0;  ///< none without a warm-up: what a graph has addresses of does not move
  };

  /// One of `ranks` ranks, which all do the same. @param open gives the NcclRank @param doing is called with each phase
  template <class Open, class Doing>
  Outcome run(int self, int ranks, Open open, Doing doing) const {
    Outcome outcome;
    CudaTrainingRank::Wanted wanted{.caps = {256, 2048}, .bound = bound};
    wanted.options.device_times = true;
    std::vector<dtrain::Parameter>* parameters = nullptr;
    wanted.options.bucket_bytes = 0;
    wanted.parts.rebuild = {[&](const std::vector<std::size_t>&) {
                              ++outcome.rebuilds;
                              return std::vector<std::size_t>{1, 0, 3, 2};
                            },
                            [&](std::size_t i, const dtrain::TensorView& view) { (*parameters)[i].gradient = view; }};
    if (casts) {
      using dtrain::hooks::Cast;
      wanted.hook = dtrain::ddp::hook_functions<dtrain::backend::Nccl::Communicator>(Cast<dtrain::bfloat16>());
    }
    CudaTrainingRank rank(open(), std::move(wanted));
    parameters = &rank.parameters;
    int& wrong = outcome.wrong;
    doing("warming up");
    for (int step = 0; step < warm_up; ++step)
      one_step(rank);
    wrong += rank.wait() ? 0 : 1;
    doing("capturing");
    const Graph graph = captured(
        rank.stream(), [&] { one_step(rank); }, mode);
    doing("replaying");
    for (int replay = 1; replay <= 3; ++replay) {
      rank.prepare_all(static_cast<float>(replay * 10 + 2 * self));
      graph.launch(rank.stream());
      wrong += rank.wait() ? 0 : 1;
      const float mean = static_cast<float>(replay * 10 + ranks - 1);
      for (std::size_t i = 0; i < rank.count(); ++i)
        wrong += rank.result(i) == std::vector<float>(rank.size(i), mean) ? 0 : 1;
    }
    doing("stepping without the graph");
    rank.prepare_all(static_cast<float>(2 * self));
    one_step(rank);
    wrong += rank.wait() ? 0 : 1;
    wrong += rank.result(0) == std::vector<float>(rank.size(0), static_cast<float>(ranks - 1)) ? 0 : 1;
    const auto measured = rank.reducer->statistics().measured_steps;  // not the one that became a graph
    wrong += measured >= 1 && measured <= static_cast<std::uint64_t>(warm_up + 1) ? 0 : 1;
    return outcome;
  }
};

}  // namespace support

#endif  // DTRAIN_WITH_NCCL
