#pragma once
/// @file
/// What the device uses of a conveyor: its slots of host memory, its stream, and the events between them.

#include <array>
#include <chrono>
#include <cstddef>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/staged/leg.hpp"
#include "dtrain/backend/staged/parcel.hpp"
#include "dtrain/backend/staged/pieces.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/host_registration.hpp"
#include "dtrain/stream/cuda/stream.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

/// Takes pieces from the program's stream, and brings results back by a stream of its own, which the program's waits
/// for. Lifetime: until is_clear(). Threads: one enqueues; parcels() from any.
template <Communicator C>
class Road {
 public:
  /// Collective, blocking: allocates `room` bytes of the inner communicator's memory for each slot.
  Road(C& inner, std::size_t room, Deadline deadline)
      : room_(room),
        slots_(inner.allocate_blocking(slots * room, deadline)),
        pinned_(slots_.data(), slots * room),
        upload_(stream::cuda::Priority::high) {}

  ParcelPool& parcels() noexcept { return parcels_; }
  stream::cuda::StreamRef upload() const noexcept { return upload_.ref(); }

  /// Host memory for the next piece, which the piece before in it has left by the time that `stream` comes to this.
  struct Slot {
    std::byte* memory;
    stream::cuda::Event* returned;
  };
  Slot take_slot(stream::cuda::StreamRef stream) {
    const Slot slot{slots_.data() + next_slot_ * room_, &returned_[next_slot_]};
    next_slot_ = (next_slot_ + 1) % slots;
    stream.wait(*slot.returned);
    return slot;
  }
  void give_back(const Slot& slot) { upload_.ref().record(*slot.returned); }

  /// Enqueued: there and back, with the parcel's events between.
  void carry(Parcel& parcel, const Leg& leg, stream::cuda::StreamRef stream) {
    parcel.input = leg.input;
    parcel.output = leg.output;
    parcel.input_count = leg.input_count;
    parcel.output_count = leg.output_count;
    stream.record(parcel.reached);
    copy_to_host(leg.to_host, stream);
    stream.record(parcel.departed);
    upload_.ref().wait(parcel.departed);  // after a failure the host signals without having waited for it
    upload_.ref().wait_unwatched(parcel.arrived, Deadline::after(longer_than_any_queue));
    copy_to_device(leg.to_device, upload_.ref());
  }

  /// Enqueued: later work of `stream` starts when all results are on the device.
  void rejoin(stream::cuda::StreamRef stream) {
    upload_.ref().record(joined_);
    stream.wait(joined_);
    stream.record(last_);
  }

  /// Blocking: until the device has passed the last rejoin, a few seconds at most.
  bool is_clear() const noexcept {
    try {
      return last_.block_until_complete(Deadline::after(patience)) == stream::WaitResult::complete;
    } catch (...) {
      return true;  // a device that has failed uses nothing any more
    }
  }

 private:
  /// The wait for a parcel ends because the parcel is signalled, which deadlines of the host's see to.
  static constexpr std::chrono::hours longer_than_any_queue{24};
  static constexpr std::chrono::seconds patience{5};

  // Members go in the reverse order.
  std::size_t room_;
  typename C::Allocation slots_;
  stream::cuda::HostRegistration pinned_;
  ParcelPool parcels_;
  std::array<stream::cuda::Event, slots> returned_;  ///< the slot's last piece is on the device again
  stream::cuda::Event joined_;                       ///< all pieces are
  stream::cuda::Event last_;
  stream::cuda::Stream upload_;
  std::size_t next_slot_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
