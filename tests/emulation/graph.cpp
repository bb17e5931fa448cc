/// @file
/// Graphs: captured steps, replayed on the stream of the launch and one further stream for each further lane.

#include "api.hpp"
#include "capture.hpp"

using namespace emulation;

struct CUgraph_st {
  Steps steps;
};

struct CUgraphExec_st {
  Steps steps;
  std::vector<Stream*> helpers;  // for the lanes from 1
};

namespace {

void replay(const Step& step, const std::vector<Record*>& records, Stream& stream) {
  switch (step.kind) {
    case Step::Kind::work: stream.enqueue(step.make()); break;
    case Step::Kind::record: stream.enqueue([record = records[step.record]] { record->complete(); }); break;
    case Step::Kind::wait: stream.enqueue([record = records[step.record]] { record->block(); }); break;
  }
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", stream, [&] {
    Stream* const origin = stream_of(stream);
    if (origin == nullptr || is_default_stream(stream)) return cudaErrorStreamCaptureUnsupported;
    if (origin->capture() != nullptr) return cudaErrorIllegalState;
    Capture::begin(*origin, mode);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return call("cudaStreamEndCapture", stream, [&] {
    *graph = nullptr;
    Stream* const origin = stream_of(stream);
    if (origin == nullptr || origin->capture() == nullptr) return cudaErrorIllegalState;
    if (!origin->capture()->began_with(*origin)) return cudaErrorStreamCaptureUnmatched;
    Capture* const capture = origin->capture();
    capture->end();
    if (!capture->is_valid()) return cudaErrorStreamCaptureInvalidated;
    if (!capture->is_joined()) return cudaErrorStreamCaptureUnjoined;
    *graph = new CUgraph_st{capture->take()};
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return call("cudaStreamIsCapturing", [&] {
    const Stream* const where = stream_of(stream);
    if (where == nullptr) return cudaErrorInvalidResourceHandle;
    const Capture* const capture = where->capture();
    *status = capture == nullptr    ? cudaStreamCaptureStatusNone
              : capture->is_valid() ? cudaStreamCaptureStatusActive
                                    : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return call("cudaGraphInstantiate", [&] {
    if (graph == nullptr) return cudaErrorInvalidValue;
    auto* const made = new CUgraphExec_st{graph->steps, {}};
    for (int lane = 1; lane < made->steps.lanes; ++lane)
      made->helpers.push_back(new Stream(current_device()));
    *executable = made;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return call("cudaGraphLaunch", stream, [&] {
    Stream* const where = stream_of(stream);
    if (executable == nullptr || where == nullptr) return cudaErrorInvalidResourceHandle;
    if (where->capture() != nullptr) return cudaErrorStreamCaptureUnsupported;
    std::vector<Record*> records(executable->steps.records);
    for (Record*& record : records)
      record = new_record();
    Record* const start = new_record();
    where->enqueue([start] { start->complete(); });
    for (Stream* helper : executable->helpers)
      helper->enqueue([start] { start->block(); });
    for (const Step& step : executable->steps.list) {
      Stream& stream_of_lane = step.lane == 0 ? *where : *executable->helpers[static_cast<std::size_t>(step.lane) - 1];
      replay(step, records, stream_of_lane);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call("cudaGraphDestroy", [&] {
    if (graph == nullptr) return cudaErrorInvalidValue;
    delete graph;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return call("cudaGraphExecDestroy", [&] {
    if (executable == nullptr) return cudaErrorInvalidValue;
    for (Stream* helper : executable->helpers)
      helper->end();
    delete executable;
    return cudaSuccess;
  });
}
