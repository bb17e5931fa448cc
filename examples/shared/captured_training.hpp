#pragma once
/// @file
/// Training on a GPU by one CUDA graph, which has the whole step: backward, reduction, clipping and update.

#include <cuda_runtime_api.h>

#include <dtrain/dtrain.hpp>

namespace shared {

/// Captures a step once, then launches it `steps` times. The host waits for nothing, and runs ahead of the device.
/// `model.load_batch(step, stream)`, `model.backward(ready, stream)` and `model.update(found_inf, stream)` enqueue on
/// the stream; the update's kernels change nothing where *found_inf is 1. Batches come to one place in device memory.
/// Lifetime: `ddp` outlives the launches.
template <class Model, class Ddp>
void train_by_graph(Model& model, Ddp& ddp, int steps, dtrain::stream::cuda::StreamRef stream) {
  using dtrain::stream::cuda::check;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t step = nullptr;
  check(cudaStreamBeginCapture(stream.native(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  ddp.backward([&](dtrain::Ready ready) { model.backward(ready, stream); }, {.clip_norm = 1.0});
  model.update(ddp.found_inf(), stream);  // its kernels change nothing where *found_inf is 1
  check(cudaStreamEndCapture(stream.native(), &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&step, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  for (int k = 0; k < steps; ++k) {
    model.load_batch(k, stream);
    check(cudaGraphLaunch(step, stream.native()), "cudaGraphLaunch");
  }
  check(cudaStreamSynchronize(stream.native()), "cudaStreamSynchronize");
  check(cudaGraphExecDestroy(step), "cudaGraphExecDestroy");
}

}  // namespace shared
