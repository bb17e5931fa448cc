#pragma once
/// @file
/// Channel: one rank's end of an NCCL channel, with its operations and their failures; Communicator owns one, with its
/// Watchdog. LaunchOrder: one order on a device for the operations of all its channels, for NCCL before 2.26.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/nccl/channel_status.hpp"
#include "dtrain/backend/nccl/inflight_ring.hpp"
#include "dtrain/backend/nccl/library.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// Makes each operation wait for the one enqueued before it on any channel of the device. Otherwise two devices may run
/// two channels' operations in different orders and wait for each other for ever, although all ranks enqueue in one
/// order (NCCL's user guide, "Using multiple NCCL communicators concurrently"). From 2.26 on the implicit launch order
/// does this inside NCCL. Operations of a captured graph are not ordered: a graph cannot
/// wait for events outside it.
class LaunchOrder {
 public:
  /// The device's order; null if the library orders by itself. Lives as long as the process, because channels of all
  /// groups share it.
  static LaunchOrder* of_device(int device) noexcept {
    static auto& all = *new std::array<LaunchOrder, max_devices>;  // never destroyed: threads may outlive main()
    const auto index = static_cast<std::size_t>(device);
    return library_version() >= first_that_orders || index >= all.size() ? nullptr : &all[index];
  }

  /// One operation, from before to after it is enqueued.
  class Turn {
   public:
    /// Makes `stream` wait for the operation before. Blocking: while another thread enqueues one, until `deadline`.
    /// @throws Error (timeout, cuda)
    Turn(LaunchOrder& order, stream::cuda::StreamRef stream, Deadline deadline) : exclusive_(order, deadline) {
      stream.wait(order.last_);
    }
    /// The operation is enqueued. @throws Error (cuda)
    void end(stream::cuda::StreamRef stream) { stream.record(exclusive_.order.last_); }

   private:
    /// At most one thread has an order.
    struct Exclusive {
      Exclusive(LaunchOrder& taken, Deadline deadline) : order(taken) {
        std::unique_lock lock(order.mutex_);
        if (!block_until(order.released_, lock, deadline, [this] { return !order.is_taken_; })) {
          throw_error(Errc::timeout,
                      "an operation of another channel of the device was still being enqueued at the timeout; NCCL "
                      "before 2.26 needs one order of all channels' operations, the same on all ranks");
        }
        order.is_taken_ = true;
      }
      Exclusive(const Exclusive&) = delete;
      Exclusive& operator=(const Exclusive&) = delete;
      ~Exclusive() {
        const std::lock_guard lock(order.mutex_);
        order.is_taken_ = false;
        order.released_.notify_one();
      }

      LaunchOrder& order;
    };

    Exclusive exclusive_;
  };

 private:
  static constexpr std::size_t max_devices = 64;

  std::mutex mutex_;
  std::condition_variable released_;
  bool is_taken_ = false;
  stream::cuda::Event last_;  ///< of the last operation; complete before the first
};

/// Shared by the Communicator, the Watchdog and the Allocations. Threads: issue() from one at a time, else any.
class Channel {
 public:
  /// Has no communicator yet: see connect_blocking(). @throws Error (cuda)
  Channel(const ChannelContext& of, const NcclOptions& with, int device)
      : context(limited(of)),
        options(with),
        status(context),
        device_(device),
        order_(LaunchOrder::of_device(device)),
        ring_(device) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  const ChannelContext context;
  const NcclOptions options;
  ChannelStatus status;
  CommLock comm_lock;

  int device() const noexcept { return device_; }
  Caller caller() const noexcept { return {context.reporting_rank(), device_}; }

  /// Enqueues the work of `call(ncclComm_t)` on `stream`. Blocking: until NCCL has launched it, microseconds. A
  /// channel's first operations connect ranks and take longer, at most `timeout`. If it throws, no thread of
  /// NCCL's will still enqueue that work, and the caller may free the memory, except if NCCL has not ended the
  /// communicator 3 s after the abort.
  /// @throws the job's first cause; Error (timeout, nccl, cuda)
  template <class Call>
  void issue(const Operation& operation, const char* function, stream::cuda::StreamRef stream, Call call) {
    status.check();
    std::optional<LaunchOrder::Turn> turn;
    std::optional<InflightRing::TrackedOperation> watched;
    if (!stream.is_capturing()) {  // a graph must not record these events; those of a graph cannot be queried
      if (order_ != nullptr) {
        turn.emplace(*order_, stream, Deadline::after(context.timeout));
      }
      watched.emplace(ring_, operation, stream);
    }
    CommLock::Guard held = lock_or_throw();
    const ncclResult_t result = call_blocking(held, Deadline::after(context.timeout), call);
    if (result != ncclSuccess) {
      watched.reset();
      turn.reset();
      throw_with_diagnosis(result, function, &operation, std::move(held));
    }
    held.unlock();
    if (watched) {
      watched->end(stream);
    }
    if (turn) {
      turn->end(stream);
    }
  }

  /// As issue(), for calls without a stream. @param doing for messages
  template <class Call>
  void manage(const std::string& doing, Deadline deadline, Call call) {
    const stream::cuda::DeviceGuard guard(device_);
    CommLock::Guard held = lock_or_throw();
    const ncclResult_t result = call_blocking(held, deadline, call);
    if (result != ncclSuccess) {
      throw_with_diagnosis(result, doing, nullptr, std::move(held));
    }
  }

  /// Tells the watchdog by when a call to NCCL is to return. One at a time.
  class TimedCall {
   public:
    TimedCall(Channel& channel, Deadline deadline) noexcept : call_until_(&channel.call_until_) {
      call_until_->store(deadline.instant(), std::memory_order_relaxed);
    }
    TimedCall(const TimedCall&) = delete;
    TimedCall& operator=(const TimedCall&) = delete;
    ~TimedCall() { call_until_->store(Deadline::Clock::time_point::max(), std::memory_order_relaxed); }

   private:
    std::atomic<Deadline::Clock::time_point>* call_until_;
  };

  /// State of the channel, read without a CUDA call. Does not block. While another thread holds the lock, sets
  /// only `is_stuck` and, of a blocking communicator, what needs no call to NCCL.
  struct PollResult {
    bool was_polled = false;  ///< if not, another thread held the lock, or there is no communicator
    ncclResult_t state = ncclSuccess;
    std::string error_text{};
    cudaError_t device = cudaSuccess;
    std::optional<Operation> overdue{};
    bool is_late = false;   ///< a TimedCall of a blocking communicator, by 5 s: `overdue` says more
    bool is_stuck = false;  ///< a poll of the events has not returned for `timeout` and 5 s
  };
  PollResult poll() {
    PollResult polled;
    const Deadline::Clock::time_point latest = Deadline::Clock::now() - context.timeout;
    const auto polling_since = ring_.polling_since();
    polled.is_stuck = polling_since && *polling_since < latest - std::chrono::seconds(5);
    const CommLock::Guard held = comm_lock.try_lock();
    polled.was_polled = held.is_granted() && held.communicator() != nullptr;
    if (!polled.was_polled && !options.blocking) {
      return polled;
    }
    const InflightRing::View view = ring_.last_view();
    polled.device = view.failure;
    const bool is_fresh = !polling_since || *polling_since > Deadline::Clock::now() - std::chrono::seconds(1);
    if (is_fresh && view.running && view.since < latest) {
      polled.overdue = *view.running;
    }
    if (!polled.was_polled) {
      polled.is_late = Deadline::Clock::now() - std::chrono::seconds(5) > call_until_.load(std::memory_order_relaxed);
      return polled;
    }
    polled.state = state_of(held);
    if (polled.state != ncclSuccess && polled.state != ncclInProgress) {
      polled.error_text = last_error(held.communicator());
    }
    return polled;
  }

  /// Queries the device for the next poll(). Blocking: in CUDA, while a stream of the device is full.
  void poll_events() { ring_.poll(); }

  /// Number of operations found complete; the watchdog polls every 50 ms.
  std::uint64_t progress() const noexcept { return ring_.progress(); }

  /// Whether all watched operations are complete. Blocking: as poll_events().
  bool idle() {
    poll_events();
    return ring_.is_idle();
  }

  /// Variable for the communicator of a split. A thread of NCCL's may write it even after the split was given up, until
  /// this channel's communicator is aborted.
  struct SplitResult {
    ncclComm_t made = nullptr;
    std::string name;  ///< of the split's channel, which NCCL reads while it splits
  };
  SplitResult& split_result(std::string name) {
    const CommLock::Guard held = comm_lock.lock();
    return split_results_.emplace_back(SplitResult{nullptr, std::move(name)});
  }

  /// Aborts the communicators of splits that were given up. Precondition: the channel's communicator has ended.
  /// Blocking, as ncclCommAbort is.
  void abort_abandoned_splits() noexcept {
    while (const ncclComm_t abandoned = take_abandoned_split()) {
      static_cast<void>(ncclCommAbort(abandoned));
    }
  }

  /// @name Registered memory
  /// @{
  using RegistrationHandle = std::list<MemoryRegistration>::iterator;

  /// Collective. Blocking: until NCCL has registered the memory. @throws as issue
  RegistrationHandle register_memory(std::byte* memory, std::size_t bytes, Deadline deadline) {
    const RegistrationHandle handle = [this] {
      const CommLock::Guard held = comm_lock.lock();
      return registrations_.emplace(registrations_.end());
    }();
    // If the registration fails, its handle stays as long as the channel, because NCCL may still write there.
    manage(format_text("registering {} bytes with NCCL", {bytes}), deadline, [&](ncclComm_t communicator) {
      return nccl::register_memory(communicator, memory, bytes, options.symmetric_arenas, *handle);
    });
    return handle;
  }

  /// Precondition: the device no longer uses the memory.
  void deregister_memory(RegistrationHandle handle) noexcept {
    const CommLock::Guard held = comm_lock.lock();
    if (held.communicator() != nullptr && !status.aborted()) {  // else the registration ends with the communicator
      static_cast<void>(nccl::deregister_memory(held.communicator(), *handle));
      registrations_.erase(handle);
    }
  }

  void deregister_all(const CommLock::Guard& held) noexcept {
    for (const MemoryRegistration& registration : registrations_) {
      static_cast<void>(nccl::deregister_memory(held.communicator(), registration));
    }
  }
  /// @}

 private:
  template <class Call>
  ncclResult_t call_blocking(CommLock::Guard& held, Deadline deadline, Call& call) {
    const TimedCall timed(*this, deadline);
    return wait_for_result_blocking(held, call(held.communicator()), deadline, [this] { return status.aborted(); });
  }

  static ChannelContext limited(ChannelContext context) {
    context.timeout = std::min<std::chrono::nanoseconds>(context.timeout, std::chrono::hours(24 * 365));
    return context;
  }

  /// @returns null if there is none left
  ncclComm_t take_abandoned_split() noexcept {
    const CommLock::Guard held = comm_lock.lock();
    ncclComm_t found = nullptr;
    for (auto each = split_results_.begin(); found == nullptr && each != split_results_.end(); ++each) {
      found = std::atomic_ref<ncclComm_t>(each->made).exchange(nullptr, std::memory_order_acquire);
    }
    return found;
  }

  CommLock::Guard lock_or_throw() {
    status.check();
    CommLock::Guard held = comm_lock.lock();
    if (held.communicator() == nullptr) {
      held.unlock();
      status.check();
      throw_error(Errc::closed, "an operation was called on channel '{}', which is closed", {context.name});
    }
    return held;
  }

  /// Fails the channel: after a failed call its communicator is unusable. A thread of NCCL's works on a call in
  /// progress until the communicator has ended.
  /// @param action the function that `operation` called, or what was done without one
  [[noreturn]] DTRAIN_NOT_INLINED void throw_with_diagnosis(ncclResult_t result, std::string_view action,
                                                            const Operation* operation, CommLock::Guard held) {
    try {
      diagnose(result, action, operation, std::move(held));
    } catch (...) {
      if (result == ncclInProgress) {
        if (!status.aborted()) status.fail(CauseKind::exception, "a call to NCCL was given up");
        // Shorter than a launcher waits for the other ranks, and than the destructor waits: unwinding may free what
        // NCCL waits for, such as a graph.
        status.block_until_ended(std::chrono::seconds(3));
      }
      throw;
    }
  }

  /// @throws always, as issue()
  [[noreturn]] void diagnose(ncclResult_t result, std::string_view action, const Operation* operation,
                             CommLock::Guard held) {
    const std::string doing =
        operation != nullptr ? format_text("{} by {}", {to_string(*operation), action}) : std::string(action);
    const std::string error_text = held.communicator() != nullptr ? last_error(held.communicator()) : std::string();
    held.unlock();
    status.check();
    const bool waited = result == ncclInProgress;
    if (waited && operation != nullptr) {
      if (const std::optional<Cause> cause = diagnose_timeout_blocking(context, *operation)) {
        status.fail(*cause);
      }
    } else if (waited) {
      status.fail(CauseKind::timeout, format_text("{} on channel '{}' had not ended in time; does every rank call it?",
                                                  {doing, context.name}));
    } else {
      status.wait_for_first_cause();  // another rank may have failed
      status.check();
      const std::string call = format_text("{} on channel '{}'", {doing, context.name});
      const Error error = nccl_error(result, call, caller(), error_text);
      status.fail(CauseKind::exception, error.what());
      throw error;
    }
    status.wait_for_first_cause();
    status.check();
    throw_error(Errc::timeout, "{} was given up", {doing});
  }

  const int device_;
  LaunchOrder* const order_;  ///< null if NCCL orders by itself
  InflightRing ring_;
  std::list<MemoryRegistration> registrations_;
  std::list<SplitResult> split_results_;  ///< null once taken
  std::atomic<Deadline::Clock::time_point> call_until_{Deadline::Clock::time_point::max()};
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
