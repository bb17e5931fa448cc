#pragma once
/// @file
/// ProgressLoop: the loop of the thread that owns MPI.

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <coroutine>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/mpi/command_queue.hpp"
#include "dtrain/backend/mpi/endpoint.hpp"
#include "dtrain/backend/mpi/requests.hpp"
#include "dtrain/backend/mpi/running_routine.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/log.hpp"

#if DTRAIN_WITH_MPI

namespace DTRAIN_NAMESPACE::backend::mpi {

/// Resumes running routines when the messages that they wait for are complete. MPI makes progress only inside its
/// calls: while messages are pending the loop tests them repeatedly, at first without a pause. Threads: commands() from
/// any, the rest from the one that owns MPI.
class ProgressLoop {
 public:
  CommandQueue& commands() noexcept { return commands_; }
  Requests& requests() noexcept { return requests_; }

  /// Whether MPI holds memory that it did not release. MPI is then not called any more, so that it does not write
  /// there, and every routine ends at once.
  bool out_of_service() const noexcept { return out_of_service_; }

  void stop() noexcept { stopped_ = true; }

  /// Blocking: until stop().
  /// @param owns_mpi the program does not finalize MPI, so the loop may call it while no message is pending
  void run(bool owns_mpi) noexcept {
    // Else the kernel adds 50 microseconds to every short sleep.
    static_cast<void>(::prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0));
    auto moved_at = std::chrono::steady_clock::now();
    int idle = 0;
    while (!stopped_) {
      const bool has_commands = commands_.take([this](Command& command) { execute(command); });
      if (poll() || has_commands) {
        idle = 0;
        continue;
      }
      const auto now = std::chrono::steady_clock::now();
      if (idle < spins) {
        ++idle;
        moved_at = now;
        continue;
      }
      if (now - moved_at < (requests_.empty() ? yield_time_idle : yield_time)) {
        static_cast<void>(::sched_yield());
      } else if (requests_.empty()) {
        commands_.sleep(
            Deadline::after(owns_mpi && !out_of_service_ ? idle_sleep_time(now - moved_at) : std::chrono::seconds(10)));
      } else {
        const auto sleep_time =
            std::clamp<std::chrono::nanoseconds>((now - moved_at) / 16, shortest_sleep, longest_sleep);
        commands_.sleep(Deadline::after(sleep_time));
      }
    }
  }

 private:
  static constexpr int spins = 20;
  static constexpr std::chrono::microseconds yield_time{300};       ///< in which the thread only yields
  static constexpr std::chrono::microseconds yield_time_idle{100};  ///< the same, for the next operation to begin
  static constexpr std::chrono::microseconds shortest_sleep{20};
  static constexpr std::chrono::microseconds longest_sleep{200};
  static constexpr std::chrono::milliseconds longest_idle_sleep{5};

  /// Calls MPI_Iprobe. @returns how long to sleep while no message is pending. MPI may complete a send before its bytes
  /// have left (its connection is not open yet, or full), and they leave only inside MPI's calls.
  std::chrono::nanoseconds idle_sleep_time(std::chrono::nanoseconds idle_for) noexcept {
    const CallMonitor::InCall in_call(requests_.call_monitor());
    int found = 0;
    static_cast<void>(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE));
    return std::clamp<std::chrono::nanoseconds>(idle_for / 16, longest_sleep, longest_idle_sleep);
  }

  void execute(Command& command) noexcept {
    if (command.call) {
      const CallMonitor::InCall in_call(requests_.call_monitor());
      command.call();
    } else if (command.cancel != nullptr) {
      if (std::find(running_.begin(), running_.end(), command.cancel) != running_.end()) {
        end(*command.cancel);
      }
    } else if (command.start != nullptr) {
      running_.push_back(command.start);
      if (out_of_service_) {
        end(*command.start);
      } else {
        command.start->routine.resume();
        end_if_done(*command.start);
      }
    }
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

  CommandQueue commands_;
  Requests requests_;
  std::vector<RunningRoutine*> running_;
  std::vector<std::pair<Endpoint*, std::coroutine_handle<>>> resumable_;
  bool out_of_service_ = false;
  bool stopped_ = false;
};

}  // namespace DTRAIN_NAMESPACE::backend::mpi

#endif  // DTRAIN_WITH_MPI
