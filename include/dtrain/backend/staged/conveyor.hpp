#pragma once
/// @file
/// Cuts an operation on device memory into pieces that are on their way at the same time.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/staged/leg.hpp"
#include "dtrain/backend/staged/order.hpp"
#include "dtrain/backend/staged/parcel.hpp"
#include "dtrain/backend/staged/pieces.hpp"
#include "dtrain/backend/staged/road.hpp"
#include "dtrain/backend/staged/station.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

/// For each piece, the program's stream copies it to the host; the station's thread waits for that and runs the host's
/// operation; the road's stream, which has waited for the thread, copies the result to the device; in the end the
/// program's stream waits for that one. So three pieces move at once, and the program's thread does not block.
///
/// Pinned. Threads: one submits; abort() and failure() from any. Destruction ends what has not run. Blocking then: for
/// the copies under way. Lifetime: the program's stream outlives its work.
template <Communicator C>
class Conveyor {
 public:
  /// Collective, blocking: allocates host memory. The device is the thread's current one.
  Conveyor(const ChannelContext& context, C inner, Deadline deadline)
      : context_(context),
        device_(stream::cuda::current_device()),
        inner_(std::move(inner)),
        room_(std::max(slot_bytes, static_cast<std::size_t>(inner_.size()) * largest_element)),
        road_(new Road<C>(inner_, room_, deadline)),
        station_(std::in_place, context_, inner_, road_->parcels(), device_) {}
  Conveyor(const Conveyor&) = delete;
  Conveyor& operator=(const Conveyor&) = delete;

  ~Conveyor() {
    station_.reset();
    if (!road_->is_clear()) {
      static_cast<void>(road_.release());  // the device still uses it, and nobody is left to wait longer
    }
  }

  /// Bytes of host memory that a piece has in a slot.
  std::size_t room() const noexcept { return room_; }

  /// Enqueued: a Leg for each piece, which `describe(index, slot)` gives; `slot` is null where the operation does not
  /// go through slots. After a failure nothing is enqueued.
  /// @throws Error (unsupported: the stream is captured; cuda: the channel is out of service then)
  template <class Describe>
  void submit(const Order& order, std::size_t pieces, bool through_slots, Describe describe,
              stream::cuda::StreamRef stream) {
    const stream::cuda::DeviceGuard guard(device_);
    refuse_capture(order.kind, stream);
    if (failure()) {
      return;
    }
    Batch batch(*this, order);
    try {
      for (std::size_t index = 0; index < pieces; ++index) {
        Parcel& parcel = batch.add();
        if (through_slots) {
          const typename Road<C>::Slot slot = road_->take_slot(stream);
          road_->carry(parcel, describe(index, slot.memory), stream);
          road_->give_back(slot);
        } else {
          road_->carry(parcel, describe(index, nullptr), stream);
        }
        batch.enqueue_if_full();
      }
      batch.enqueue();
      road_->rejoin(stream);
    } catch (const std::exception& error) {
      station_->fail(order.kind, CauseKind::exception, error.what());
      batch.give_up();
      rejoin_if_possible(stream);
      throw;
    }
  }

  /// Blocking: until everything submitted has run on the host. @returns false at the deadline
  bool settle(Deadline deadline) { return station_->settle(deadline); }

  /// A number that grows while pieces are carried. Threads: any.
  std::uint64_t progress() const noexcept { return station_->progress(); }

  C& inner() noexcept { return inner_; }
  const C& inner() const noexcept { return inner_; }
  const ChannelContext& context() const noexcept { return context_; }
  int device() const noexcept { return device_; }
  stream::cuda::StreamRef upload() const noexcept { return road_->upload(); }

  void abort(const Cause& cause) noexcept { inner_.abort(cause); }
  std::optional<Cause> failure() const { return inner_.failure(); }

 private:
  static constexpr std::size_t largest_element = 16;

  /// Parcels that go to the thread together. The first one goes alone, so that the thread begins at once.
  class Batch {
   public:
    Batch(Conveyor& conveyor, const Order& order) noexcept : conveyor_(conveyor), order_(order) {}

    Parcel& add() {
      if (conveyor_.road_->parcels().is_empty()) {
        enqueue();  // or the device, which waits for these parcels, would be waited for
      }
      Parcel& parcel = conveyor_.road_->parcels().take();
      (first_ == nullptr ? first_ : last_->next) = &parcel;
      last_ = &parcel;
      ++count_;
      return parcel;
    }

    void enqueue_if_full() {
      if (count_ >= limit_) {
        enqueue();
        limit_ = parcels_together;
      }
    }

    void enqueue() {
      if (first_ != nullptr) {
        conveyor_.station_->enqueue(order_, first_, count_);
        first_ = nullptr;
        count_ = 0;
      }
    }

    void give_up() noexcept { conveyor_.road_->parcels().give_back_all(std::exchange(first_, nullptr)); }

   private:
    static constexpr std::size_t parcels_together = 8;

    Conveyor& conveyor_;
    const Order& order_;
    Parcel* first_ = nullptr;
    Parcel* last_ = nullptr;
    std::size_t count_ = 0;
    std::size_t limit_ = 1;
  };

  static void refuse_capture(Kind kind, stream::cuda::StreamRef stream) {
    if (stream.is_capturing()) {
      throw Error(Errc::unsupported, std::string(name(kind)) +
                                         " through host memory was enqueued on a stream that is being captured, but a "
                                         "graph cannot hold what the host does; use backend::Nccl, or do not capture");
    }
  }

  /// After a failure: the end is to wait for what was enqueued all the same.
  void rejoin_if_possible(stream::cuda::StreamRef stream) noexcept {
    try {
      road_->rejoin(stream);
    } catch (...) {
      // The device itself has failed.
    }
  }

  const ChannelContext context_;
  const int device_;
  C inner_;
  const std::size_t room_;
  std::unique_ptr<Road<C>> road_;
  std::optional<Station<C>> station_;
};

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
