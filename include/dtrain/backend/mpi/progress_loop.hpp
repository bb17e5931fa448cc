#pragma once
/// @file
/// ProgressLoop of an mpi::Engine: waiting threads drive all routines over MPI, one thread inside MPI at a time.
/// CallQueue: calls for the thread that initialised MPI.

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/transport.hpp"
#include "dtrain/backend/mpi/endpoint.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/futex.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend::mpi {

/// Threads: push() from any thread, all other calls from the thread that makes the calls, which sleeps while the queue
/// is empty.
class CallQueue {
 public:
  void push(std::function<void()> call) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(call));
    }
    number_.fetch_add(1);
    if (asleep_.load()) {
      futex_wake_all(number_, FutexScope::process);
    }
  }

  /// @returns the calls that were pushed since the last take()
  std::vector<std::function<void()>> take() {
    const std::uint32_t number = number_.load(std::memory_order_acquire);
    if (number == taken_number_) {
      return {};
    }
    taken_number_ = number;
    const std::lock_guard lock(mutex_);
    return std::exchange(waiting_, {});
  }

  /// Blocking: until there is a call that was not taken, or the deadline passes.
  void sleep(Deadline deadline) noexcept {
    asleep_.store(true);
    futex_wait(number_, taken_number_, deadline, FutexScope::process);  // returns at once if the number has changed
    asleep_.store(false);
  }

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> waiting_;
  std::atomic<std::uint32_t> number_{0};  ///< number of calls pushed
  std::atomic<bool> asleep_{false};
  std::uint32_t taken_number_ = 0;
};

/// Futex of the thread that waits for a channel's routine. Threads: sleep() from one, notify() from any.
/// Lifetime: outlives every thread that calls notify().
class Wakeup {
 public:
  /// Blocking: until notify() or the deadline; returns at once if `is_ready()`.
  template <class IsReady>
  void sleep(Deadline deadline, IsReady is_ready) noexcept {
    word_.store(asleep);
    if (!is_ready()) {
      futex_wait(word_, asleep, deadline, FutexScope::process);
    }
    word_.store(awake);
  }

  void notify() noexcept {
    if (word_.load(std::memory_order_seq_cst) == asleep && word_.exchange(awake) == asleep) {
      futex_wake_all(word_, FutexScope::process);
    }
  }

 private:
  enum WaitState : std::uint32_t { awake, asleep };
  std::atomic<std::uint32_t> word_{awake};
};

#if DTRAIN_WITH_MPI

/// Lifetime: until it has ended.
struct RunningRoutine {
  Endpoint& endpoint;
  message_passing::Routine& routine;
  Wakeup& wakeup;
  const message_passing::CancellationToken& token;
  std::atomic<bool> ended{false};  ///< the operation's memory is no longer used, unless memory_is_lost
  bool memory_is_lost = false;     ///< MPI still uses that memory; valid once `ended` is set
};

/// MPI makes progress only inside its calls, and is called by one thread at a time, which holds the loop's lock. A
/// thread that waits for a routine drives all of them: no operation is passed to another thread. The thread that
/// initialised MPI makes the calls that other threads push, and watches the threads that wait.
/// Threads: drive() and its relatives from the thread that waits; run() from the thread that initialised MPI.
class ProgressLoop {
 public:
  CallQueue& calls() noexcept { return calls_; }
  Requests& requests() noexcept { return requests_; }

  /// Whether MPI holds memory that it did not release. MPI is then not called any more, so that it does not write
  /// there, and every routine ends at once. Threads: those that hold the lock.
  bool out_of_service() const noexcept { return out_of_service_; }

  /// Starts a routine. Blocking: while another thread is inside MPI.
  void start(RunningRoutine& routine) noexcept {
    const std::unique_lock lock = lock_for(routine);
    running_.push_back(&routine);
    if (out_of_service_) {
      end(routine);
    } else {
      routine.routine.resume();
      end_if_done(routine);
    }
  }

  /// Tests all messages once, and resumes the routines that wait for those that are complete.
  /// @returns whether any was; false if another thread holds the lock or waits for it
  bool drive() noexcept {
    if (lock_wanted_.load(std::memory_order_relaxed) != 0) {
      return false;
    }
    const std::unique_lock lock(mutex_, std::try_to_lock);
    return lock && poll();
  }

  /// Cancels a started routine unless it has ended. Blocking: while another thread is inside MPI.
  void cancel(RunningRoutine& routine) noexcept {
    const std::unique_lock lock = lock_for(routine);
    if (!routine.ended.load()) {
      end(routine);
    }
  }

  /// A thread begins to wait for `routine`, and is watched until withdraw().
  void enter(RunningRoutine& routine) noexcept {
    const std::lock_guard lock(waiters_mutex_);
    waiters_.push_back(&routine);
  }

  /// The thread waits no longer. Another one that waits is woken, because it has to drive its routine itself now.
  void withdraw(RunningRoutine& routine) noexcept {
    const std::lock_guard lock(waiters_mutex_);
    waiters_.erase(std::find(waiters_.begin(), waiters_.end(), &routine));
    ++withdrawn_;
    if (!waiters_.empty()) {
      waiters_.front()->wakeup.notify();
    }
  }

  void stop() noexcept { stopped_ = true; }

  /// Blocking: until stop(). Makes the calls of other threads, ends the process if a cancelled routine's thread hangs
  /// inside MPI, and calls MPI from time to time while no thread waits.
  /// @param owns_mpi the program does not finalize MPI, so the loop may call it while no message is pending
  void run(bool owns_mpi) noexcept {
    std::uint64_t seen = 0;
    auto moved_at = std::chrono::steady_clock::now();
    while (!stopped_) {
      make_calls();
      const auto now = std::chrono::steady_clock::now();
      const auto [waits, withdrawn] = watch();
      if (std::exchange(seen, withdrawn) != withdrawn || waits) {
        moved_at = now;
      }
      if (stopped_) {
        break;
      }
      calls_.sleep(Deadline::after(waits      ? watch_interval
                                   : owns_mpi ? idle_sleep_time(now - moved_at)
                                              : longest_sleep));
    }
  }

 private:
  static constexpr std::chrono::milliseconds hang_timeout{500};  ///< time after which an MPI call counts as hanging
  static constexpr int yields = 100;
  static constexpr std::chrono::milliseconds watch_interval{2};
  static constexpr std::chrono::milliseconds shortest_idle_sleep{1};
  static constexpr std::chrono::milliseconds longest_idle_sleep{5};
  static constexpr std::chrono::milliseconds longest_sleep{100};  ///< time until it notices another waiting thread

  struct WaiterCount {
    bool waits;
    std::uint64_t withdrawn;
  };

  /// Ends the process if a call to MPI has not returned for a while.
  void check_hang(std::optional<HangDetector>& detector, const RunningRoutine& cancelled) noexcept {
    if (!detector) {
      detector.emplace(requests_.call_monitor(), hang_timeout);
    } else if (detector->hangs()) {
      // Open MPI's TCP transport ends a process from inside a call when a peer is lost, and takes seconds for it.
      log(LogLevel::error,
          format_text("{} (and a call to MPI does not return: this process ends here)", {cancelled.token.reason()}));
      ::_exit(exit_code_job_failed);
    }
  }

  /// The lock of a thread that waits for `routine`. Blocking: while another thread is inside MPI.
  std::unique_lock<std::mutex> lock_for(const RunningRoutine& routine) noexcept {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock) {
      return lock;
    }
    std::optional<HangDetector> hang_detector;
    lock_wanted_.fetch_add(1);  // a thread that drives would take the lock again at once
    for (int turn = 0; !lock.try_lock(); ++turn) {
      if (turn < yields) {
        static_cast<void>(::sched_yield());
      } else {
        routine.wakeup.sleep(Deadline::after(std::chrono::milliseconds(1)), [] { return false; });
      }
      if (routine.token.should_end()) {
        check_hang(hang_detector, routine);
      }
    }
    lock_wanted_.fetch_sub(1);
    return lock;
  }

  void make_calls() noexcept {
    std::vector<std::function<void()>> calls = calls_.take();
    if (calls.empty()) {
      return;
    }
    lock_wanted_.fetch_add(1);
    const std::lock_guard lock(mutex_);
    lock_wanted_.fetch_sub(1);
    for (std::function<void()>& call : calls) {
      const CallMonitor::InCall in_call(requests_.call_monitor());
      call();
    }
  }

  /// Whether a thread waits, which may hang inside MPI: then no other thread can end its routine.
  WaiterCount watch() noexcept {
    const std::lock_guard lock(waiters_mutex_);
    const auto cancelled = std::find_if(waiters_.begin(), waiters_.end(),
                                        [](const RunningRoutine* one) { return one->token.should_end(); });
    if (cancelled == waiters_.end()) {
      hang_detector_.reset();
    } else {
      check_hang(hang_detector_, **cancelled);
    }
    return {!waiters_.empty(), withdrawn_};
  }

  /// Calls MPI_Iprobe. @returns how long to sleep while no thread waits. MPI may complete a send before its bytes have
  /// left (its connection is not open yet, or full), and they leave only inside MPI's calls.
  std::chrono::nanoseconds idle_sleep_time(std::chrono::nanoseconds idle_for) noexcept {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock && !out_of_service_) {
      const CallMonitor::InCall in_call(requests_.call_monitor());
      int found = 0;
      static_cast<void>(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE));
    }
    return std::clamp<std::chrono::nanoseconds>(idle_for / 16, shortest_idle_sleep, longest_idle_sleep);
  }

  /// @returns whether a message was complete
  bool poll() noexcept {
    if (out_of_service_ || requests_.empty()) {
      return false;
    }
    try {
      resumable_.clear();
      const bool some = requests_.test([this](const Requests::Completed& completed) {
        const std::coroutine_handle<> waiter =
            completed.owner.endpoint->complete(completed.owner.slot, completed.bytes, completed.error);
        if (waiter) {
          resumable_.emplace_back(completed.owner.endpoint, waiter);
        }
      });
      for (std::size_t i = 0; i < resumable_.size() && !out_of_service_; ++i) {
        const auto [endpoint, waiter] = resumable_[i];
        const auto running = std::find_if(running_.begin(), running_.end(),
                                          [at = endpoint](const RunningRoutine* one) { return &one->endpoint == at; });
        waiter.resume();
        end_if_done(**running);
      }
      return some;
    } catch (const std::exception& error) {
      log(LogLevel::error, std::string("MPI is out of service in this process: ") + error.what());
      take_out_of_service();
      return true;
    }
  }

  void end_if_done(RunningRoutine& running) noexcept {
    if (running.routine.done()) {
      end(running);
    }
  }

  /// After an error or a cancellation messages may still be pending.
  void end(RunningRoutine& running) noexcept {
    running_.erase(std::find(running_.begin(), running_.end(), &running));
    running.endpoint.clear_waiter();
    const bool released = out_of_service_ ? running.routine.done() : requests_.abandon(running.endpoint);
    running.memory_is_lost = !released;
    Wakeup& wakeup = running.wakeup;
    running.ended.store(true);
    wakeup.notify();
    if (!released && !out_of_service_) {
      take_out_of_service();
    }
  }

  void take_out_of_service() noexcept {
    out_of_service_ = true;
    while (!running_.empty()) {
      end(*running_.back());
    }
    requests_.forget();
  }

  CallQueue calls_;
  std::atomic<int> lock_wanted_{0};  ///< threads that wait for the lock
  bool stopped_ = false;
  std::optional<HangDetector> hang_detector_;

  std::mutex mutex_;  ///< held by the thread that calls MPI
  Requests requests_;
  std::vector<RunningRoutine*> running_;
  std::vector<std::pair<Endpoint*, std::coroutine_handle<>>> resumable_;
  bool out_of_service_ = false;

  std::mutex waiters_mutex_;
  std::vector<RunningRoutine*> waiters_;
  std::uint64_t withdrawn_ = 0;
};

#endif  // DTRAIN_WITH_MPI

}  // namespace DTRAIN_NAMESPACE::backend::mpi
