/// @file
/// Calls that fail because a test wants it, and events that get lost.

#include <unistd.h>

#include <initializer_list>
#include <string_view>

#include "api.hpp"
#include "emulation.hpp"
#include "stream.hpp"

namespace emulation {
namespace {

struct PlannedFailure {
  std::string function;
  int calls_left;
  int error;
  int device;
};

// Nothing here is ever destroyed: streams' threads may still run when a program's static objects go.
struct Plan {
  std::mutex mutex;
  std::vector<PlannedFailure> failures;
};
Plan& plan() {
  static Plan* const only = new Plan;
  return *only;
}

// Read without the mutex, which would order threads that a GPU does not.
std::atomic<bool> planned{false};
std::atomic<int> first_user{0};

std::atomic<int> ignored_wait{0};
std::atomic<int> ignored_record{0};
std::atomic<int> wait_count{0};
std::atomic<int> record_count{0};
std::atomic<int> host_wait_count{0};
std::atomic<int> device_wait_count{0};
std::atomic<std::size_t> host_byte_count{0};

int planned_failure(const char* function) noexcept {
  const std::lock_guard lock(plan().mutex);
  for (PlannedFailure& failure : plan().failures) {
    if (failure.function != function || failure.calls_left == 0) continue;
    if (failure.device != any_device && failure.device != current_device()) continue;
    if (--failure.calls_left == 0) return failure.error;
  }
  return 0;
}

/// Whether the context of the thread's current device is current for the driver, too: a call of the runtime that needs
/// the device makes it so, and the driver's own calls need it.
thread_local bool has_bound_context = false;

thread_local int calls_here = 0;

bool is_any_of(std::string_view function, std::initializer_list<std::string_view> names) noexcept {
  return std::find(names.begin(), names.end(), function) != names.end();
}

/// Whether a call of that name makes no context of the thread's device.
bool needs_no_context(std::string_view function) noexcept {
  return is_any_of(function, {"cudaGetDevice", "cudaGetDeviceCount", "cudaDeviceGetPCIBusId",
                              "cudaGetDriverEntryPointByVersion", "cudaRuntimeGetVersion"});
}

/// cudaSetDevice looks at the device that it is given; ncclCommAbort and ncclCommDestroy end the communicator first.
bool needs_sound_device(std::string_view function) noexcept {
  return !needs_no_context(function) &&
         !is_any_of(function, {"cudaSetDevice", "cudaThreadExchangeStreamCaptureMode", "cuDevicePrimaryCtxGetState",
                               "ncclGetVersion", "ncclGetUniqueId", "ncclCommGetAsyncError", "ncclCommAbort",
                               "ncclCommDestroy", "ncclGroupStart", "ncclGroupEnd"});
}

/// What a call of that name makes of the thread's context: 0, or CUDA_ERROR_INVALID_CONTEXT.
int bound(std::string_view function) noexcept {
  constexpr int invalid_context = 201;
  if (is_any_of(function, {"cuLaunchKernel", "cuStreamWaitValue32", "cuStreamWriteValue32"})) {
    return has_bound_context ? 0 : invalid_context;
  }
  has_bound_context = has_bound_context || (function.starts_with("cuda") && !needs_no_context(function));
  return 0;
}

bool is_next(std::atomic<int>& count, const std::atomic<int>& wanted) noexcept {
  return count.fetch_add(1, std::memory_order_relaxed) + 1 == wanted.load(std::memory_order_relaxed);
}

}  // namespace

int admitted(const char* function) noexcept {
  const int self = ::getpid();
  int first = 0;
  if (!first_user.compare_exchange_strong(first, self, std::memory_order_relaxed) && first != self) {
    return cudaErrorInitializationError;
  }
  if (in_stream_thread()) return cudaErrorNotPermitted;
  if (std::string_view(function).starts_with("cu")) ++calls_here;
  const int failure = planned.load(std::memory_order_relaxed) ? planned_failure(function) : 0;
  if (failure != 0) return failure;
  if (is_broken(current_device()) && needs_sound_device(function)) return cudaErrorIllegalAddress;
  return bound(function);
}

void fail(const std::string& function, int nth, int error, int device) {
  const std::lock_guard lock(plan().mutex);
  plan().failures.push_back({function, nth, error, device});
  planned.store(true, std::memory_order_relaxed);
}

bool is_failure_pending(const std::string& function) {
  const std::lock_guard lock(plan().mutex);
  return std::any_of(plan().failures.begin(), plan().failures.end(), [&](const PlannedFailure& failure) {
    return failure.function == function && failure.calls_left > 0;
  });
}

bool wait_is_ignored() noexcept {
  return is_next(wait_count, ignored_wait);
}
bool record_is_ignored() noexcept {
  return is_next(record_count, ignored_record);
}
void count_host_wait() noexcept {
  host_wait_count.fetch_add(1, std::memory_order_relaxed);
}

void count_device_wait() noexcept {
  device_wait_count.fetch_add(1, std::memory_order_relaxed);
}

void count_bytes_to_host(std::size_t bytes) noexcept {
  host_byte_count.fetch_add(bytes, std::memory_order_relaxed);
}

void ignore_wait(int nth) {
  wait_count.store(0, std::memory_order_relaxed);
  ignored_wait.store(nth, std::memory_order_relaxed);
}
void ignore_record(int nth) {
  record_count.store(0, std::memory_order_relaxed);
  ignored_record.store(nth, std::memory_order_relaxed);
}
int waits() {
  return wait_count.load(std::memory_order_relaxed);
}
int records() {
  return record_count.load(std::memory_order_relaxed);
}
int calls_of_thread() {
  return calls_here;
}
int host_waits() {
  return host_wait_count.load(std::memory_order_relaxed);
}
int device_waits() {
  return device_wait_count.load(std::memory_order_relaxed);
}
std::size_t bytes_to_host() {
  return host_byte_count.load(std::memory_order_relaxed);
}

void reset() {
  {
    const std::lock_guard lock(plan().mutex);
    plan().failures.clear();
    planned.store(false, std::memory_order_relaxed);
  }
  ignore_wait(0);
  ignore_record(0);
  host_wait_count.store(0, std::memory_order_relaxed);
  device_wait_count.store(0, std::memory_order_relaxed);
  host_byte_count.store(0, std::memory_order_relaxed);
  set_hardware_queues(false);
  reset_devices();
  reset_nccl();
  reset_network();
}

}  // namespace emulation
