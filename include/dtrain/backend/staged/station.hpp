#pragma once
/// @file
/// The thread that runs the inner backend's operations on parcels that have come to the host.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/staged/order.hpp"
#include "dtrain/backend/staged/parcel.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/relaxed_capture.hpp"
#include "dtrain/stream/host/communication_stream.hpp"
#include "dtrain/stream/host/queue.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

/// Owns the inner communicator. Every parcel is signalled in the end, whatever fails: no stream is left waiting.
/// Pinned. Threads: one enqueues and settles; abort() and failure() from any.
template <Communicator C>
class Station {
 public:
  /// Lifetime: `parcels` outlive it.
  Station(const ChannelContext& context, C& inner, ParcelPool& parcels, int device)
      : context_(context), device_(device), inner_(inner), parcels_(parcels) {
    orders_.emplace();
    orders_->start_helper();
  }
  Station(const Station&) = delete;
  Station& operator=(const Station&) = delete;

  /// Ends what has not run. Blocking: until the operation under way has ended, which sees that.
  ~Station() {
    if (served_.load() != enqueued_) {
      inner_.abort({CauseKind::exception, context_.reporting_rank(), context_.members.host,
                    "its communicator was destroyed before all of its work had run"});
    }
    orders_->stop_helper();
  }

  /// The chain of `count` parcels is served in turn. Blocking: while hundreds of chains are waiting.
  void enqueue(const Order& order, Parcel* first, std::size_t count) {
    orders_->ref().enqueue(Work{this, order, first});
    enqueued_ += count;
  }

  /// Blocking: until everything enqueued has run. @returns false at the deadline
  bool settle(Deadline deadline) {
    stream::host::Event all;
    orders_->ref().record(all);
    return all.block_until_complete(deadline) == stream::WaitResult::complete;
  }

  /// How many parcels have been served. Threads: any.
  std::uint64_t progress() const noexcept { return served_.load(); }

  /// Ends the channel and tells the job.
  void fail(Kind kind, CauseKind cause_kind, const char* text) noexcept {
    try {
      const Cause cause{cause_kind, context_.reporting_rank(), context_.members.host,
                        std::string(name(kind)) + " on channel '" + context_.name + "': " + text};
      inner_.abort(cause);
      context_.failure->report(cause);
    } catch (...) {
      // Out of memory for the sentence: the peers' timeouts tell.
    }
  }

 private:
  static constexpr std::chrono::milliseconds look_for_failure{5};

  struct Work {
    Station* station;
    Order order;
    Parcel* first;

    void operator()() noexcept { station->serve(order, first); }
    void drop() noexcept { station->parcels_.give_back_all(first); }
  };

  void serve(const Order& order, Parcel* parcel) noexcept {
    for (Parcel* next = nullptr; parcel != nullptr; parcel = next) {
      next = parcel->next;
      try {
        const stream::cuda::RelaxedCapture relaxed;
        take_device();
        if (!inner_.failure() && has_departed(order, *parcel)) {
          run(order, *parcel);
        }
      } catch (const std::exception& error) {
        fail(order.kind, CauseKind::exception, error.what());
      }
      if (parcel->arrived.timed_out()) {
        fail(order.kind, CauseKind::timeout, "its stream gave up waiting for the host");
      }
      served_.fetch_add(1);  // first: who has seen the result may destroy the communicator
      parcels_.give_back(*parcel);
    }
  }

  /// A new thread's device is 0, and asking it for anything would take memory of that one.
  void take_device() const {
    if (stream::cuda::current_device() != device_) {
      stream::cuda::check(cudaSetDevice(device_), "cudaSetDevice");
    }
  }

  /// Blocking: until the piece is in host memory, by the channel's timeout from when the program's stream has come to
  /// it; until then by the peers' timeouts, which fail the channel. @returns false where the channel has failed
  bool has_departed(const Order& order, const Parcel& parcel) {
    std::optional<Deadline> deadline;
    while (parcel.departed.block_until_complete(Deadline::after(look_for_failure)) != stream::WaitResult::complete) {
      if (inner_.failure()) {
        return false;
      }
      if (!deadline && parcel.reached.is_complete()) {
        deadline = Deadline::after(context_.timeout);
      }
      if (deadline && deadline->passed()) {
        fail(order.kind, CauseKind::timeout,
             "copying a piece to the host took longer than the timeout; is the device still there?");
        return false;
      }
    }
    return true;
  }

  /// Blocking: the inner operation ends by a deadline of its own.
  void run(const Order& order, const Parcel& parcel) {
    start(inner_, order, parcel, steps_.ref());
    while (steps_.block_until_complete(steps_.published(), Deadline::after(std::chrono::minutes(1))) !=
           stream::WaitResult::complete) {
    }
  }

  const ChannelContext& context_;
  const int device_;
  C& inner_;
  ParcelPool& parcels_;
  stream::host::Queue steps_;                                ///< the inner communicator's
  std::uint64_t enqueued_ = 0;                               ///< parcels
  std::atomic<std::uint64_t> served_{0};                     ///< of them
  std::optional<stream::host::CommunicationStream> orders_;  ///< its end drops what has not run, which signals it
};

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
