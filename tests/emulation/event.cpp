/// @file
/// Calls that make, record and wait for events.

#include "event.hpp"

#include "api.hpp"
#include "capture.hpp"
#include "futex.hpp"

namespace emulation {
namespace {

// Reachable for ever, so that LeakSanitizer is content; pushed with release only, so that nobody learns anything.
std::atomic<Record*> all_records{nullptr};

}  // namespace

Record* new_record() {
  auto* const record = new Record;
  record->older = all_records.load(std::memory_order_relaxed);
  while (
      !all_records.compare_exchange_weak(record->older, record, std::memory_order_release, std::memory_order_relaxed)) {
  }
  return record;
}

void Record::complete() noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  done_at_ns.store(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(), std::memory_order_relaxed);
  done.store(1, std::memory_order_release);
  wake_all(done);
}

void Record::block() const noexcept {
  wait_until(done, [this] { return is_done(); });
}

int handle_device(cudaEvent_t event) noexcept {
  return event == nullptr ? current_device() : event_of(event)->device();
}

}  // namespace emulation

using namespace emulation;

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return call("cudaEventCreateWithFlags", [&] {
    make_context(current_device());
    *event = reinterpret_cast<cudaEvent_t>(new Event(current_device(), flags));
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call("cudaEventDestroy", event, [&] {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    delete event_of(event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call("cudaEventRecord", stream, [&] {
    Stream* const where = stream_of(stream);
    if (event == nullptr || where == nullptr || event_of(event)->device() != where->device()) {
      return cudaErrorInvalidResourceHandle;
    }
    if (record_is_ignored()) return cudaSuccess;
    block_while_driver_is_held(where->device());
    if (Capture* const graph = where->capture()) {
      event_of(event)->set_captured({graph, graph->add_record(where->lane())});
      return cudaSuccess;
    }
    Record* const record = new_record();
    event_of(event)->set_captured({});
    event_of(event)->set_latest(record);
    where->enqueue([record] { record->complete(); });
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  return call("cudaStreamWaitEvent", stream, [&] {
    Stream* const where = stream_of(stream);
    if (event == nullptr || where == nullptr) return cudaErrorInvalidResourceHandle;
    if (flags != cudaEventWaitDefault) return cudaErrorInvalidValue;
    if (wait_is_ignored()) return cudaSuccess;
    if (event_of(event)->captured().capture != nullptr || where->capture() != nullptr) {
      return captured_wait(*where, *event_of(event));
    }
    Record* const record = event_of(event)->latest();
    if (record != nullptr) where->enqueue([record] { record->block(); });
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call("cudaEventQuery", event, [&] {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (Capture* const capture = event_of(event)->captured().capture) {
      capture->invalidate();
      return cudaErrorCapturedEvent;
    }
    if (const cudaError_t refused = refused_while_capturing()) return refused;
    block_while_driver_is_held(event_of(event)->device());
    const Record* const record = event_of(event)->latest();
    return record == nullptr || record->is_done() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call("cudaEventSynchronize", event, [&] {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (Capture* const capture = event_of(event)->captured().capture) {
      capture->invalidate();
      return cudaErrorCapturedEvent;
    }
    if (const cudaError_t refused = refused_while_capturing()) return refused;
    count_host_wait();
    if (const Record* const record = event_of(event)->latest()) record->block();
    return cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call("cudaEventElapsedTime", [&] {
    if (start == nullptr || end == nullptr) return cudaErrorInvalidResourceHandle;
    const Record* const first = event_of(start)->latest();
    const Record* const last = event_of(end)->latest();
    const bool timed = event_of(start)->has_timing() && event_of(end)->has_timing();
    if (first == nullptr || last == nullptr || !timed) return cudaErrorInvalidResourceHandle;
    if (!first->is_done() || !last->is_done()) return cudaErrorNotReady;
    *milliseconds = static_cast<float>(static_cast<double>(last->done_at_ns - first->done_at_ns) / 1e6);
    return cudaSuccess;
  });
}
