#pragma once
/// @file
/// AsyncResult: waiting for a nonblocking NCCL call, which finishes in threads of NCCL's own.

#include <algorithm>
#include <chrono>
#include <thread>

#include "dtrain/backend/nccl/comm_lock.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// Result of the wait. `code` is NCCL's: ncclInProgress if the deadline passed or the wait was given up.
struct AsyncResult {
  ncclResult_t code = ncclSuccess;
  bool given_up = false;
};

/// NCCL's asynchronous state: an error found in its own threads puts the communicator out of service.
inline ncclResult_t state_of(const CommLock::Guard& held) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t code = ncclCommGetAsyncError(held.communicator(), &state);
  return code != ncclSuccess ? code : state;
}

/// Waits for a call that returned `code`. Also queries the communicator after ncclSuccess, which ncclCommSplit and,
/// from 2.28 on, ncclCommWindowRegister return while they still run (src/init.cc, src/dev_runtime.cc). Until the call
/// has ended, no thread makes another call or enqueues CUDA work on its stream. Blocking: launching an operation takes
/// tens of microseconds, so the lock is kept for 300; after that it is released between queries, for aborts.
/// @param give_up is called without the lock
template <class GiveUp>
AsyncResult wait_for_result_blocking(CommLock::Guard& held, ncclResult_t code, Deadline deadline, GiveUp give_up) {
  constexpr std::chrono::microseconds longest_sleep{2000};
  constexpr std::chrono::microseconds kept{300};
  const auto began = Deadline::Clock::now();
  std::chrono::microseconds sleep{20};
  if (code == ncclSuccess && held.communicator() != nullptr) {
    code = state_of(held);
  }
  for (; code == ncclInProgress; code = state_of(held)) {
    if (Deadline::Clock::now() - began < kept) {
      std::this_thread::yield();
      continue;
    }
    held.unlock();
    const bool gives_up = give_up();
    if (!gives_up) {
      std::this_thread::sleep_for(sleep);
      sleep = std::min(2 * sleep, longest_sleep);
    }
    held.lock();
    if (gives_up || held.communicator() == nullptr) {
      return {ncclInProgress, true};
    }
    if (deadline.passed()) {
      code = state_of(held);
      return {code, false};
    }
  }
  return {code, false};
}

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
