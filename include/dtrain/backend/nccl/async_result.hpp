#pragma once
/// @file
/// Waiting until NCCL has done what a call began: its calls here return at once and finish in threads of NCCL's own.

#include <algorithm>
#include <chrono>
#include <thread>

#include "dtrain/backend/nccl/comm_lock.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// How it ended: `code` is NCCL's; ncclInProgress where the deadline passed, or the waiting was given up.
struct AsyncResult {
  ncclResult_t code = ncclSuccess;
  bool given_up = false;
};

/// Whether an error that NCCL found in its own threads has put the communicator out of service.
inline ncclResult_t state_of(const CommLock::Guard& held) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t code = ncclCommGetAsyncError(held.communicator(), &state);
  return code != ncclSuccess ? code : state;
}

/// After a call that returned `code`; the communicator is asked where that is ncclSuccess, too, because ncclCommSplit
/// and, from 2.28 on, ncclCommWindowRegister say so while they still run (src/init.cc, src/dev_runtime.cc). Before it
/// has ended no other call may be made, and no CUDA work enqueued on the stream concerned. Blocking: to launch an
/// operation takes tens of microseconds, in which the lock is kept; then others, who may abort, get it in between.
/// @param give_up is asked without the lock
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
