#pragma once
/// @file
/// One rank's end of an NCCL channel: enqueuing operations, and giving up when one fails.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/nccl/error.hpp"
#include "dtrain/backend/nccl/fate.hpp"
#include "dtrain/backend/nccl/gate.hpp"
#include "dtrain/backend/nccl/late_ranks.hpp"
#include "dtrain/backend/nccl/settling.hpp"
#include "dtrain/backend/nccl/watch_ring.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// Shared by the Communicator, the thread that watches and the Allocations. Threads: issue and close from one at a
/// time, the rest from any.
class Channel {
 public:
  /// Without a communicator: see opening.hpp. @throws Error (cuda)
  Channel(const ChannelContext& of, const NcclOptions& with, int device)
      : context(limited(of)), options(with), fate(context), device_(device), ring_(device) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  const ChannelContext context;
  const NcclOptions options;
  Fate fate;
  Gate gate;

  int device() const noexcept { return device_; }
  Caller caller() const noexcept { return {context.reporting_rank(), device_}; }

  /// Enqueues what `call(ncclComm_t)` enqueues on `stream`. Blocking: until NCCL has launched it, microseconds; the
  /// first operations of a channel connect ranks and take longer, `timeout` at most.
  /// @throws the job's first cause; Error (timeout, nccl, cuda)
  template <class Call>
  void issue(const Operation& operation, const char* function, stream::cuda::StreamRef stream, Call call) {
    fate.check();
    std::optional<WatchRing::Entry> watched;
    if (!stream.is_capturing()) {  // a graph must not record these events, nor anybody query its own
      watched.emplace(ring_, operation, stream);
    }
    Gate::Turn turn = enter_or_throw();
    const Settled settled = settle_blocking(turn, call(turn.communicator()), Deadline::after(context.timeout),
                                            [this] { return fate.aborted(); });
    if (settled.code != ncclSuccess) {
      watched.reset();
      explain(settled, to_string(operation) + " by " + function, &operation, std::move(turn));
    }
    turn.leave();
    if (watched) {
      watched->end(stream);
    }
  }

  /// The same for calls without a stream. @param doing for messages
  template <class Call>
  void manage(const std::string& doing, Deadline deadline, Call call) {
    const stream::cuda::DeviceGuard guard(device_);
    Gate::Turn turn = enter_or_throw();
    const Settled settled =
        settle_blocking(turn, call(turn.communicator()), deadline, [this] { return fate.aborted(); });
    if (settled.code != ncclSuccess) {
      explain(settled, doing, nullptr, std::move(turn));
    }
  }

  /// What the watching thread sees, without a call of CUDA's. Blocking: no; while another thread is at the gate only
  /// whether CUDA answers.
  struct Sight {
    bool looked = false;  ///< else another thread was at the gate, or there is no communicator
    ncclResult_t state = ncclSuccess;
    std::string words{};
    cudaError_t device = cudaSuccess;
    std::optional<Operation> overdue{};
    bool is_stuck = false;  ///< events are being asked, and do not answer
  };
  Sight look() {
    Sight sight;
    const Deadline::Clock::time_point latest = Deadline::Clock::now() - context.timeout;
    const auto asking_since = ring_.asking_since();
    sight.is_stuck = asking_since && *asking_since < latest - std::chrono::seconds(5);
    const Gate::Turn turn = gate.try_enter();
    if (!turn.is_granted() || turn.communicator() == nullptr) {
      return sight;
    }
    sight.looked = true;
    const WatchRing::View view = ring_.seen();
    sight.device = view.failure;
    const bool is_fresh = !asking_since || *asking_since > Deadline::Clock::now() - std::chrono::seconds(1);
    if (is_fresh && view.running && view.since < latest) {
      sight.overdue = *view.running;
    }
    sight.state = state_of(turn);
    if (sight.state != ncclSuccess && sight.state != ncclInProgress) {
      sight.words = last_words(turn.communicator());
    }
    return sight;
  }

  /// Asks the device for what the next look() is to see. Blocking: in CUDA, for as long as a stream of the device is
  /// full.
  void ask_events() { ring_.look(); }

  /// How many operations were seen to be complete; the watching thread looks every 50 ms.
  std::uint64_t progress() const noexcept { return ring_.progress(); }

  /// Whether all operations that are watched are complete. Blocking: as ask_events().
  bool idle() {
    ask_events();
    return ring_.is_idle();
  }

  /// Where a thread of NCCL's writes what a split gives, and at worst after the split was given up: until this
  /// channel's communicator is aborted.
  ncclComm_t& room_for_split() {
    const Gate::Turn turn = gate.enter();
    return split_off_.emplace_back(nullptr);
  }

  /// What splits gave that were given up. Blocking, as ncclCommAbort is; once the communicator has ended.
  void abort_split_off() noexcept {
    while (const ncclComm_t nobodys = take_split_off()) {
      static_cast<void>(ncclCommAbort(nobodys));
    }
  }

  /// @name Registered memory
  /// @{
  using Place = std::list<Registration>::iterator;

  /// Collective. Blocking: until NCCL knows the memory. @throws as issue
  Place enlist(std::byte* memory, std::size_t bytes, Deadline deadline) {
    const Place place = [this] {
      const Gate::Turn turn = gate.enter();
      return known_.emplace(known_.end());
    }();
    // Where that fails the place stays as long as the channel, because NCCL may still be writing there.
    manage("registering " + std::to_string(bytes) + " bytes with NCCL", deadline, [&](ncclComm_t communicator) {
      return nccl::enlist(communicator, memory, bytes, options.symmetric_arenas, *place);
    });
    return place;
  }

  /// Once the device has let go of it.
  void strike(Place place) noexcept {
    const Gate::Turn turn = gate.enter();
    if (turn.communicator() != nullptr && !fate.aborted()) {  // else it goes with the communicator
      static_cast<void>(nccl::strike(turn.communicator(), *place));
      known_.erase(place);
    }
  }

  void strike_all(const Gate::Turn& turn) noexcept {
    for (const Registration& known : known_) {
      static_cast<void>(nccl::strike(turn.communicator(), known));
    }
  }
  /// @}

 private:
  static ChannelContext limited(ChannelContext context) {
    context.timeout = std::min<std::chrono::nanoseconds>(context.timeout, std::chrono::hours(24 * 365));
    return context;
  }

  /// @returns null where there is no more
  ncclComm_t take_split_off() noexcept {
    const Gate::Turn turn = gate.enter();
    ncclComm_t found = nullptr;
    for (auto each = split_off_.begin(); found == nullptr && each != split_off_.end(); ++each) {
      found = std::atomic_ref<ncclComm_t>(*each).exchange(nullptr, std::memory_order_acquire);
    }
    return found;
  }

  Gate::Turn enter_or_throw() {
    fate.check();
    Gate::Turn turn = gate.enter();
    if (turn.communicator() == nullptr) {
      turn.leave();
      fate.check();
      throw Error(Errc::closed, "an operation was called on channel '" + context.name + "', which is closed");
    }
    return turn;
  }

  /// Fails the channel: whatever goes wrong in a call, NCCL leaves nothing that is usable.
  [[noreturn]] void explain(const Settled& settled, const std::string& doing, const Operation* operation,
                            Gate::Turn turn) {
    const std::string words = turn.communicator() != nullptr ? last_words(turn.communicator()) : std::string();
    turn.leave();
    fate.check();
    const bool waited = settled.code == ncclInProgress;
    if (waited && operation != nullptr) {
      if (const std::optional<Cause> cause = why_late_blocking(context, *operation)) {
        fate.fail(*cause);
      }
    } else if (waited) {
      fate.fail(CauseKind::timeout,
                doing + " on channel '" + context.name + "' had not ended in time; does every rank call it?");
    } else {
      fate.block_for_job();  // another rank may have gone
      fate.check();
      const Error error = nccl_error(settled.code, doing + " on channel '" + context.name + "'", caller(), words);
      fate.fail(CauseKind::exception, error.what());
      throw error;
    }
    fate.block_for_job();
    fate.check();
    throw Error(Errc::timeout, doing + " was given up");
  }

  const int device_;
  WatchRing ring_;
  std::list<Registration> known_;
  std::list<ncclComm_t> split_off_;  ///< null once somebody owns it
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
