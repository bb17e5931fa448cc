#pragma once
/// @file
/// nccl::Channel of a Communicator: one rank's end of an NCCL channel, with its operations and their failures.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/backend/failure/wait_notice.hpp"
#include "dtrain/backend/nccl/channel_status.hpp"
#include "dtrain/backend/nccl/first_calls.hpp"
#include "dtrain/backend/nccl/inflight_ring.hpp"
#include "dtrain/backend/nccl/launch_order.hpp"
#include "dtrain/backend/nccl/library.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// Shared by the Communicator, the Watchdog and the Allocations. Threads: issue() from one at a time, else any.
class Channel {
 public:
  /// Has no communicator yet: see connect_blocking() and split_blocking().
  /// @throws Error (cuda)
  Channel(const ChannelContext& of, const NcclOptions& with, int device, Launches launches_from)
      : context(limited(of)),
        options(with),
        launches(launches_from),
        status(context),
        device_(device),
        order_(LaunchOrder::of_device(device)),
        ring_(device),
        notice_(context.notice_after) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  const ChannelContext context;
  const NcclOptions options;
  const Launches launches;
  ChannelStatus status;
  CommLock comm_lock;
  std::shared_ptr<Channel> parent{};  ///< which this one was split from: it holds the name that NCCL keeps a pointer to

  int device() const noexcept { return device_; }
  Caller caller() const noexcept { return {context.reporting_rank(), device_}; }

  /// Enqueues the work of `call(ncclComm_t)` on `stream`. Blocking: until NCCL has launched it, microseconds; while
  /// InflightRing::capacity operations are in flight; before an operation in which NCCL may connect ranks, until all of
  /// them have called it, at most `timeout`. If it throws, no thread of NCCL's will still enqueue that work, and the
  /// caller may free the memory, except if NCCL has not ended the communicator 3 s after the abort.
  /// @param paths of a message; empty for a collective
  /// @throws the job's first cause; Error (timeout, nccl, cuda)
  template <class Call>
  void issue(const Operation& operation, std::span<const MessagePath> paths, const char* function,
             stream::cuda::StreamRef stream, Call call) {
    status.check();
    const bool may_connect = meet_before_connecting(operation, paths, function, stream);
    std::optional<LaunchOrder::Turn> turn;
    std::optional<InflightRing::TrackedOperation> watched;
    if (!stream.is_capturing()) {  // a graph must not record these events; those of a graph cannot be queried
      block_while_far_ahead(operation);
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
    if (context.activity) context.activity->call(operation);
    if (watched) {
      watched->end(stream);
    }
    if (turn) {
      turn->end(stream);
    }
    if (may_connect && paths.empty()) first_calls_.add(operation);
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

  /// Gives the watchdog the deadline of a call to NCCL. One at a time.
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
    if (!polled.was_polled && launches != Launches::in_caller) {
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
  void poll_events() {
    ring_.poll();
    if (!context.activity) return;
    const std::optional<Operation> running = ring_.has_begun() ? ring_.oldest() : std::nullopt;
    if (running) {
      context.activity->begin(*running);
    } else {
      context.activity->end();
    }
  }

  /// The first operation that no poll has found complete, without a call to CUDA; empty if there is none.
  std::optional<Operation> oldest_operation() const { return ring_.oldest(); }

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
    std::string name;  ///< name of the split's channel, which NCCL reads while it splits
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
    const std::string doing = format_text("registering {} bytes with NCCL", {bytes});
    if (options.symmetric_arenas && launches == Launches::in_caller) {
      meet_all(nullptr, doing, "is " + doing, deadline, {});
    }
    // If the registration fails, its handle stays as long as the channel, because NCCL may still write there.
    manage(doing, deadline, [&](ncclComm_t communicator) {
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

  /// Blocking: while the ring of operations in flight is full. A launch that waited in CUDA's queue instead would wait
  /// for other ranks, with a lock of the driver's, and could not be aborted. The watchdog ends the wait if the first of
  /// the operations runs for longer than the timeout. Where none begins, the stream's earlier work decides: a warning.
  /// @throws the job's first cause, as status.check()
  void block_while_far_ahead(const Operation& next) {
    if (!ring_.is_full()) return;
    const stream::cuda::RelaxedCapture relaxed;
    const auto began = Deadline::Clock::now();
    for (ring_.poll(); ring_.is_full(); ring_.poll()) {
      status.check();
      if (!ring_.has_begun()) {
        notice_.update(context.reporting_rank(), Deadline::Clock::now() - began, [&](std::chrono::milliseconds after) {
          return format_text(
              "{}: {} operations before it are in flight, and none has begun to run for {}; does work before them in "
              "their stream wait for this thread?",
              {described_on(context.name, next), InflightRing::capacity, duration_text(after)});
        });
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  /// See FirstCalls. @returns whether NCCL may connect ranks in the operation
  bool meet_before_connecting(const Operation& operation, std::span<const MessagePath> paths, const char* function,
                              stream::cuda::StreamRef stream) {
    if (launches != Launches::in_caller || context.members.world_size == 1) return false;
    if (paths.empty()) {
      if (!first_calls_.may_connect(operation)) return false;
      meet_all(&operation, function, call_text(operation), Deadline::after(context.timeout), stream);
      return true;
    }
    std::vector<MessagePath> first;
    for (const MessagePath& path : paths)
      if (path.from != path.to && first_calls_.may_connect(path)) first.push_back(path);
    if (first.empty()) return false;
    meet(&operation, function, Deadline::after(context.timeout), stream,
         [&](const StoreRank& self) { first_calls_.meet_blocking(self, context.name, first); });
    for (const MessagePath& path : first)
      first_calls_.add(path);
    return true;
  }

  /// @param operation null if there is none @param call "called barrier as operation 3" @throws as issue()
  void meet_all(const Operation* operation, std::string_view action, const std::string& call, Deadline deadline,
                std::optional<stream::cuda::StreamRef> stream) {
    std::string differ;
    meet(operation, action, deadline, stream,
         [&](const StoreRank& self) { differ = first_calls_.meet_blocking(self, context.name, call); });
    if (!differ.empty()) {
      status.fail(differing_calls(context, differ));
      status.check();
    }
  }

  /// An operation's timeout begins once its stream has come to it.
  /// @param wait `wait(self)` returns once the other ranks have come @throws as issue()
  template <class Wait>
  void meet(const Operation* operation, std::string_view action, Deadline deadline,
            std::optional<stream::cuda::StreamRef> stream, Wait wait) {
    std::optional<stream::cuda::Event> reached;
    if (stream && !stream->is_capturing()) stream->record(reached.emplace());
    auto began = Deadline::Clock::now();  // or when the stream was last seen before the operation
    const std::string doing = operation != nullptr ? described_on(context.name, *operation) : std::string(action);
    for (;;) {
      StoreRank self = StoreRank::of(context, deadline, doing);
      self.check = [&] {
        status.check();
        if (reached && !reached->is_complete_beside_capture()) began = Deadline::Clock::now();
      };
      try {
        return wait(self);
      } catch (const JobFailed&) {
        status.check();
        throw;
      } catch (const Error& error) {
        if (error.code() != make_error_code(Errc::timeout)) {
          status.fail(CauseKind::exception, error.what());
          throw;
        }
        deadline = Deadline::at(began + context.timeout);
        if (reached && !deadline.passed()) continue;
        throw_with_diagnosis(ncclInProgress, action, operation, comm_lock.lock(), first_calls_.missing_blocking(self));
      }
    }
  }

  /// Fails the channel: after a failed call its communicator is unusable. A thread of NCCL's works on a call in
  /// progress until the communicator has ended.
  /// @param action the function that `operation` called, or what was done without one
  /// @param missing ranks that are known not to have called the operation
  [[noreturn]] DTRAIN_NOT_INLINED void throw_with_diagnosis(ncclResult_t result, std::string_view action,
                                                            const Operation* operation, CommLock::Guard held,
                                                            const std::vector<int>& missing = {}) {
    try {
      diagnose(result, action, operation, std::move(held), missing);
    } catch (...) {
      if (result == ncclInProgress && launches != Launches::none) {  // a root has no watchdog before its end
        if (!status.aborted()) status.fail(CauseKind::exception, "a call to NCCL was given up");
        // Shorter than a launcher waits for the other ranks, and than the destructor waits: unwinding may free what
        // NCCL waits for, for example a graph.
        status.block_until_ended(std::chrono::seconds(3));
      }
      throw;
    }
  }

  /// @throws always, as issue()
  [[noreturn]] void diagnose(ncclResult_t result, std::string_view action, const Operation* operation,
                             CommLock::Guard held, const std::vector<int>& missing) {
    const std::string doing =
        operation != nullptr ? format_text("{} by {}", {to_string(*operation), action}) : std::string(action);
    const std::string error_text = held.communicator() != nullptr ? last_error(held.communicator()) : std::string();
    held.unlock();
    status.check();
    const bool waited = result == ncclInProgress;
    if (waited && operation != nullptr) {
      if (const std::optional<Cause> cause = diagnose_timeout_blocking(context, *operation, missing)) {
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
  FirstCalls first_calls_;
  WaitNotice notice_;
  std::list<MemoryRegistration> registrations_;
  std::list<SplitResult> split_results_;  ///< null once taken
  std::atomic<Deadline::Clock::time_point> call_until_{Deadline::Clock::time_point::max()};
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
