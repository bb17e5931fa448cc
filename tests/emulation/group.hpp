#pragma once
/// @file
/// Groups: what a thread calls between ncclGroupStart and ncclGroupEnd begins at the end.

#include <nccl.h>

#include "operation.hpp"

namespace emulation {

/// Enqueues the operation on the stream, or notes it in the calling thread's group.
ncclResult_t submit(Communicator& communicator, Stream& stream, Operation operation);

/// Waits for the initialisation of a blocking communicator, or lets the group's end do so.
ncclResult_t await_init(Communicator& communicator);

inline ncclComm_t handle_of(Communicator* communicator) {
  return reinterpret_cast<ncclComm_t>(communicator);
}
inline Communicator* communicator_of(ncclComm_t handle) {
  return reinterpret_cast<Communicator*>(handle);
}

/// ncclSuccess, or why the call of that name is not done.
ncclResult_t nccl_admitted(const char* function) noexcept;

/// A call on a communicator; two at once are counted as a mistake.
class InsideCall {
 public:
  explicit InsideCall(Communicator& communicator) noexcept;
  InsideCall(const InsideCall&) = delete;
  InsideCall& operator=(const InsideCall&) = delete;
  ~InsideCall() { communicator_.calls_inside.fetch_sub(1, std::memory_order_relaxed); }

 private:
  Communicator& communicator_;
};

}  // namespace emulation
