/// @file
/// Captures of streams, and what the calls around them may not do.

#include "capture.hpp"

#include "api.hpp"

namespace emulation {
namespace {

thread_local cudaStreamCaptureMode mode_here = cudaStreamCaptureModeGlobal;

// Read before the mutex, which would order threads that a GPU does not.
std::atomic<int> captures_under_way{0};

// Reachable for ever.
std::vector<Capture*>& all_captures() {
  static auto* const only = new std::vector<Capture*>;
  return *only;
}
std::mutex& all_captures_mutex() {
  static auto* const only = new std::mutex;
  return *only;
}

}  // namespace

void Capture::begin(Stream& origin, cudaStreamCaptureMode mode) {
  auto* const capture = new Capture(mode);
  capture->join(origin);
  captures_under_way.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(all_captures_mutex());
  all_captures().push_back(capture);
}

void Capture::end() {
  for (Stream* stream : streams_)
    stream->set_capture(nullptr, 0);
  streams_.clear();
  over_.store(true, std::memory_order_relaxed);
  captures_under_way.fetch_sub(1, std::memory_order_relaxed);
}

void Capture::add(int lane, MakeWork make) {
  steps_.list.push_back({Step::Kind::work, lane, 0, std::move(make)});
}

std::size_t Capture::add_record(int lane) {
  steps_.list.push_back({Step::Kind::record, lane, steps_.records, {}});
  return steps_.records++;
}

void Capture::add_wait(int lane, std::size_t record) {
  steps_.list.push_back({Step::Kind::wait, lane, record, {}});
}

void Capture::join(Stream& stream) {
  stream.set_capture(this, steps_.lanes++);
  streams_.push_back(&stream);
}

bool Capture::is_joined() const {
  // Backwards: lane 0 is joined at its end; any other from a record on that a joined part of a lane waits for.
  std::vector<bool> joined(static_cast<std::size_t>(steps_.lanes), false);
  std::vector<bool> awaited(steps_.records, false);
  joined[0] = true;
  for (auto step = steps_.list.rbegin(); step != steps_.list.rend(); ++step) {
    const auto lane = static_cast<std::size_t>(step->lane);
    if (step->kind == Step::Kind::record && awaited[step->record]) joined[lane] = true;
    if (step->kind == Step::Kind::wait && joined[lane]) awaited[step->record] = true;
    if (step->kind == Step::Kind::work && !joined[lane]) return false;
  }
  return true;
}

cudaError_t captured_wait(Stream& stream, const Event& event) {
  const CapturedRecord captured = event.captured();
  if (captured.capture == nullptr) {
    if (event.latest() == nullptr) return cudaSuccess;
    stream.capture()->invalidate();
    return cudaErrorStreamCaptureIsolation;
  }
  if (captured.capture->is_over()) return cudaErrorCapturedEvent;
  if (stream.capture() == nullptr) captured.capture->join(stream);
  if (stream.capture() != captured.capture) return cudaErrorStreamCaptureMerge;
  captured.capture->add_wait(stream.lane(), captured.index);
  return cudaSuccess;
}

cudaError_t refused_while_capturing() noexcept {
  if (mode_here == cudaStreamCaptureModeRelaxed || captures_under_way.load(std::memory_order_relaxed) == 0) {
    return cudaSuccess;
  }
  cudaError_t refused = cudaSuccess;
  const std::lock_guard lock(all_captures_mutex());
  for (Capture* const capture : all_captures()) {
    if (!capture->is_broken_by(mode_here, std::this_thread::get_id())) continue;
    capture->invalidate();
    refused = cudaErrorStreamCaptureUnsupported;
  }
  return refused;
}

}  // namespace emulation

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return emulation::call("cudaThreadExchangeStreamCaptureMode", [&] {
    std::swap(*mode, emulation::mode_here);
    return cudaSuccess;
  });
}
