#pragma once
/// @file
/// The loop of the thread that owns MPI.

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <coroutine>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/mpi/endpoint.hpp"
#include "dtrain/backend/mpi/orders.hpp"
#include "dtrain/backend/mpi/requests.hpp"
#include "dtrain/backend/mpi/task.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/log.hpp"

#if DTRAIN_WITH_MPI

namespace DTRAIN_NAMESPACE::backend::mpi {

/// Runs tasks: resumes their routines when what they wait for has come. MPI makes progress only inside its calls: while
/// messages are under way they are tested without end, at first without a pause.
/// Threads: all but `orders` belongs to the thread that owns MPI.
class ProgressLoop {
 public:
  Orders& orders() noexcept { return orders_; }
  Requests& requests() noexcept { return requests_; }

  /// Whether MPI holds memory that it could not be made to let go of: then it is not called any more, so that it does
  /// not write there, and every task ends at once.
  bool out_of_service() const noexcept { return out_of_service_; }

  void stop() noexcept { stopped_ = true; }

  /// Blocking: until stop().
  /// @param owns_mpi nobody else ends MPI: it may be called while nothing is waited for
  void run(bool owns_mpi) noexcept {
    // Else the kernel adds 50 microseconds to every short nap.
    static_cast<void>(::prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0));
    auto moved_at = std::chrono::steady_clock::now();
    int idle = 0;
    while (!stopped_) {
      const bool ordered = orders_.take([this](Order& order) { carry_out(order); });
      if (poll() || ordered) {
        idle = 0;
        continue;
      }
      const auto now = std::chrono::steady_clock::now();
      if (idle < spins) {
        ++idle;
        moved_at = now;
        continue;
      }
      if (now - moved_at < (requests_.empty() ? patience_idle : patience)) {
        static_cast<void>(::sched_yield());
      } else if (requests_.empty()) {
        orders_.sleep(Deadline::after(owns_mpi && !out_of_service_ ? rest(now - moved_at) : std::chrono::seconds(10)));
      } else {
        const auto nap = std::clamp<std::chrono::nanoseconds>((now - moved_at) / 16, shortest_nap, longest_nap);
        orders_.sleep(Deadline::after(nap));
      }
    }
  }

 private:
  static constexpr int spins = 20;
  static constexpr std::chrono::microseconds patience{300};       ///< in which the core is only lent to others
  static constexpr std::chrono::microseconds patience_idle{100};  ///< the same, for the next operation to begin
  static constexpr std::chrono::microseconds shortest_nap{20};
  static constexpr std::chrono::microseconds longest_nap{200};
  static constexpr std::chrono::milliseconds longest_rest{5};

  /// How long to sleep where nothing is waited for. A send may be complete for MPI before its bytes have left (its
  /// connection is not there yet, or full), and they leave only inside MPI's calls.
  std::chrono::nanoseconds rest(std::chrono::nanoseconds idle_for) noexcept {
    const Calls::Inside inside(requests_.calls());
    int found = 0;
    static_cast<void>(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE));
    return std::clamp<std::chrono::nanoseconds>(idle_for / 16, longest_nap, longest_rest);
  }

  void carry_out(Order& order) noexcept {
    if (order.call) {
      const Calls::Inside inside(requests_.calls());
      order.call();
    } else if (order.give_up != nullptr) {
      if (std::find(tasks_.begin(), tasks_.end(), order.give_up) != tasks_.end()) {
        end(*order.give_up);
      }
    } else if (order.start != nullptr) {
      tasks_.push_back(order.start);
      if (out_of_service_) {
        end(*order.start);
      } else {
        order.start->routine.resume();
        look_at(*order.start);
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
        const auto task = std::find_if(tasks_.begin(), tasks_.end(),
                                       [at = endpoint](const Task* one) { return &one->endpoint == at; });
        waiter.resume();
        look_at(**task);
      }
      return some;
    } catch (const std::exception& error) {
      log(LogLevel::error, std::string("MPI is given up in this process: ") + error.what());
      retire();
      return true;
    }
  }

  void look_at(Task& task) noexcept {
    if (task.routine.done()) {
      end(task);
    }
  }

  /// After an error, or given up, messages may be left.
  void end(Task& task) noexcept {
    tasks_.erase(std::find(tasks_.begin(), tasks_.end(), &task));
    task.endpoint.forget_waiter();
    const bool let_go = out_of_service_ ? task.routine.done() : requests_.abandon(task.endpoint);
    task.memory_is_lost = !let_go;
    Bell& bell = task.bell;
    task.ended.store(true);
    bell.ring();
    if (!let_go && !out_of_service_) {
      retire();
    }
  }

  void retire() noexcept {
    out_of_service_ = true;
    while (!tasks_.empty()) {
      end(*tasks_.back());
    }
    requests_.forget();
  }

  Orders orders_;
  Requests requests_;
  std::vector<Task*> tasks_;
  std::vector<std::pair<Endpoint*, std::coroutine_handle<>>> resumable_;
  bool out_of_service_ = false;
  bool stopped_ = false;
};

}  // namespace DTRAIN_NAMESPACE::backend::mpi

#endif  // DTRAIN_WITH_MPI
