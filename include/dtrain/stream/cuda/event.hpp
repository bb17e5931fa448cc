#pragma once
/// @file
/// stream::cuda::Event: a point in a CUDA stream. ExternalEvent: completed by the host; a CUDA stream waits for it.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <type_traits>

#include "dtrain/async/thread.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/futex.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/stream.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

/// Owns a cudaEvent_t without timing, made by the first record on the recording stream's device. An event never
/// recorded is complete. Threads: any thread polls and waits, but not while another thread records.
/// @ingroup streams
class Event {
 public:
  /// Whether the event is complete; false if the device has failed: block_until_complete() throws the device's error.
  /// Not while a stream is being captured, because this call would break the capture.
  bool is_complete() const noexcept { return event_ == nullptr || quiet(cudaEventQuery(native())); }

  /// As is_complete(), for a thread that captures nothing while another thread captures.
  bool is_complete_beside_capture() const noexcept {
    const RelaxedCapture relaxed;
    return is_complete();
  }

  /// Blocking: polls, for 50 us without a pause, then every 100 us, since the runtime's own wait has no deadline. A
  /// sleep ends late by Linux's timer slack, 50 us.
  /// @throws Error (cuda) if the device has failed, by this event's work or other work
  WaitResult block_until_complete(Deadline deadline) const {
    if (poll()) return WaitResult::complete;
    const WaitTime wait;
    constexpr std::chrono::microseconds longest_sleep{100};
    const Deadline spin = Deadline::after(std::chrono::microseconds(50));
    std::chrono::microseconds sleep{1};
    while (!poll()) {
      if (deadline.passed()) {
        return poll() ? WaitResult::complete : WaitResult::timed_out;
      }
      if (!spin.passed()) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(sleep);
        sleep = std::min(2 * sleep, longest_sleep);
      }
    }
    return WaitResult::complete;
  }

  /// For calls of the runtime; null before the first record.
  cudaEvent_t native() const noexcept { return event_.get(); }

 private:
  friend class StreamRef;

  void record(cudaStream_t stream, int device) {
    if (event_ == nullptr || device != device_) {
      event_.reset();
      const DeviceGuard guard(device);
      cudaEvent_t event = nullptr;
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
      event_.reset(event);
      device_ = device;
    }
    check(cudaEventRecord(native(), stream), "cudaEventRecord");
  }

  bool poll() const {
    const cudaError_t code = event_ == nullptr ? cudaSuccess : cudaEventQuery(native());
    if (code != cudaErrorNotReady) {
      check(code, "cudaEventQuery");
    }
    return quiet(code);
  }

  /// The runtime keeps a destroyed event until it completes.
  std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, ReleasedBy<cudaEventDestroy>> event_;
  int device_ = 0;
};

namespace driver {

using WaitValue32 = int (*)(cudaStream_t stream, unsigned long long address, std::uint32_t value, unsigned int flags);

inline constexpr int not_supported = 801;
inline constexpr unsigned int wait_until_at_least = 0;  ///< CU_STREAM_WAIT_VALUE_GEQ: cyclic
inline constexpr unsigned int version = 12000;          ///< this version's entry point needs no driver option

}  // namespace driver

/// Enqueued: later work of `stream` starts when `*word`, in pinned memory, has reached or passed `value`.
/// @returns false if the driver or the device has no such wait; nothing is enqueued in this case
/// @throws Error (cuda)
inline bool wait_for_value(cudaStream_t stream, const std::uint32_t* word, std::uint32_t value) {
  static const auto wait =
      reinterpret_cast<driver::WaitValue32>(driver_function("cuStreamWaitValue32", driver::version));
  if (wait == nullptr) {
    return false;
  }
  // Pinned memory has one address, on the host and on every device.
  const int result = wait(stream, reinterpret_cast<std::uintptr_t>(word), value, driver::wait_until_at_least);
  if (result == driver::not_supported) {
    return false;
  }
  check(static_cast<cudaError_t>(result), "cuStreamWaitValue32");  // the numbers are the same
  return true;
}

/// Incomplete until signal(). Streams wait, by a memory operation, until a word in pinned memory reaches the number of
/// this round. reset() begins the next round; a stream that reaches its wait after reset() passes it. If the device has
/// no such operation, a thread of the runtime blocks instead of the stream. A context has one such thread: waits of its
/// streams begin one after the other, and no wait may depend on work after another one.
///
/// Threads: all members from any thread, except reset(). Lifetime: not movable; outlives the work that waits for it. A
/// thread that sees the event complete may destroy it once no stream waits, because signal() no longer uses the event.
class ExternalEvent {
 public:
  /// @throws Error (cuda) if there is no pinned memory
  ExternalEvent() : own_(sizeof(std::uint32_t)) { place(own_.data()); }

  /// Borrows four bytes of pinned memory, for owners of many events. Lifetime: as the event's.
  explicit ExternalEvent(std::byte* pinned) { place(pinned); }

  ExternalEvent(const ExternalEvent&) = delete;
  ExternalEvent& operator=(const ExternalEvent&) = delete;
  ~ExternalEvent() {
    if (watch_) {
      signal();  // ends the watch
    }
  }

  bool is_complete() const noexcept { return phase(state_.load(std::memory_order_acquire)) >= signalled; }

  /// Whether a stream's wait reached its deadline before the signal.
  bool timed_out() const noexcept { return phase(state_.load(std::memory_order_acquire)) == expired; }

  void signal() noexcept { complete(state_.load(std::memory_order_acquire), signalled); }

  /// Makes the event incomplete again. Not while a thread waits.
  void reset() noexcept {
    const std::uint32_t state = state_.load(std::memory_order_acquire);
    if (phase(state) >= signalled) {
      state_.store(round(state) + one_round, std::memory_order_release);
    }
  }

  WaitResult block_until_complete(Deadline deadline) const noexcept {
    return block(round(state_.load(std::memory_order_acquire)), deadline);
  }

 private:
  friend class StreamRef;

  /// A state is a round's number plus its phase; rounds count in steps of one_round, which leaves space for the phase.
  enum Phase : std::uint32_t { idle, awaited, signalled, expired };
  static constexpr std::uint32_t one_round = 4;
  static constexpr std::uint32_t phase(std::uint32_t state) noexcept { return state % one_round; }
  static constexpr std::uint32_t round(std::uint32_t state) noexcept { return state - phase(state); }

  static bool is_before(std::uint32_t earlier, std::uint32_t later) noexcept {  // cyclic, as the device compares
    return static_cast<std::int32_t>(earlier - later) < 0;
  }

  /// Argument of a runtime thread that blocks instead of a stream.
  struct HostWait {
    ExternalEvent* event;
    std::uint32_t round;
    Deadline deadline;
  };

  void place(std::byte* pinned) { word_ = ::new (static_cast<void*>(pinned)) std::atomic<std::uint32_t>(0); }

  /// Enqueues a wait: see StreamRef.
  void enqueue_wait(cudaStream_t stream, Deadline deadline, bool watched) {
    const std::uint32_t present = round(state_.load(std::memory_order_acquire));
    if (!wait_for_value(stream, reinterpret_cast<const std::uint32_t*>(word_), present)) {
      enqueue_host_wait(stream, {this, present, deadline});
    } else if (watched) {
      watch(present, deadline);
    }
  }

  static void enqueue_host_wait(cudaStream_t stream, const HostWait& wait) {
    auto* const kept = new HostWait(wait);
    const auto run = [](void* argument) {
      HostWait* const given = static_cast<HostWait*>(argument);
      given->event->expire_at(given->round, given->deadline);
      delete given;
    };
    const cudaError_t code = cudaLaunchHostFunc(stream, run, kept);
    if (code != cudaSuccess) {
      delete kept;
      throw cuda_error(code, "cudaLaunchHostFunc");
    }
  }

  /// A device cannot check deadlines: a thread of this event does, until the round is over.
  void watch(std::uint32_t waited_round, Deadline deadline) {
    if (watch_ && watched_round_ == waited_round) {
      return;  // the first wait's deadline ends the round
    }
    watch_.reset();  // the previous watch has ended, as its round has
    const async::BlockedSignals blocked;
    watch_.emplace(std::thread([this, waited_round, deadline] { expire_at(waited_round, deadline); }));
    watched_round_ = waited_round;
  }

  void expire_at(std::uint32_t waited_round, Deadline deadline) noexcept {
    if (block(waited_round, deadline) == WaitResult::timed_out) {
      const std::uint32_t state = state_.load(std::memory_order_acquire);
      if (round(state) == waited_round) {
        complete(state, expired);
      }
    }
  }

  bool is_over(std::uint32_t waited_round) const noexcept {
    return !is_before(word_->load(std::memory_order_acquire), waited_round);
  }

  WaitResult block(std::uint32_t waited_round, Deadline deadline) const noexcept {
    while (!is_over(waited_round)) {
      std::uint32_t state = waited_round + idle;
      if (!state_.compare_exchange_strong(state, waited_round + awaited, std::memory_order_acquire) &&
          state != waited_round + awaited) {
        continue;  // the word has been written before this
      }
      const FutexResult result = futex_wait(state_, waited_round + awaited, deadline, FutexScope::process);
      if (result == FutexResult::timed_out && !is_over(waited_round)) {
        return WaitResult::timed_out;
      }
    }
    return WaitResult::complete;
  }

  /// Ends the round that `state` was read in, unless it is over. The word is written first, because a thread that sees
  /// the event complete may destroy it. Two threads may call this at once: the slower one neither sets the word back
  /// nor ends the next round.
  void complete(std::uint32_t state, Phase as) noexcept {
    const std::uint32_t present = round(state);
    if (phase(state) >= signalled) {
      return;
    }
    std::uint32_t word = word_->load(std::memory_order_relaxed);
    while (is_before(word, present) && !word_->compare_exchange_weak(word, present, std::memory_order_release)) {
    }
    while (state < present + signalled && round(state) == present &&
           !state_.compare_exchange_weak(state, present + as, std::memory_order_acq_rel)) {
    }
    if (state == present + awaited) {
      futex_wake_all(state_, FutexScope::process);
    }
  }

  PinnedBuffer own_;
  std::atomic<std::uint32_t>* word_ = nullptr;  ///< the last round that is over; read by devices
  mutable std::atomic<std::uint32_t> state_{one_round};
  std::uint32_t watched_round_ = 0;
  std::optional<async::JoiningThread> watch_;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
