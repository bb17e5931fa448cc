#pragma once
/// @file
/// topology::ParallelRunner: second thread of an algorithm, to send one chunk while another is reduced.

#include <chrono>
#include <exception>

#include "dtrain/async/worker_thread.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Runs two functions at the same time. Threads: one at a time. Lifetime: destroyed before the objects that its
/// functions use.
class ParallelRunner {
 public:
  /// Runs `first()` in this thread and `second()` in the other; each returns whether its channel still works. If one
  /// throws, `stop(cause)` must make the other return. Blocks until both have returned.
  /// @returns whether both channels still work. @throws the exception of first(), else of second()
  template <class First, class Second, class Stop>
  bool run_both(First first, Second second, Stop stop) {
    CallResult second_result;
    auto work = [&]() noexcept { second_result = result_of(second, stop); };
    worker_.start(work);
    const CallResult first_result = result_of(first, stop);
    // The loop ends: each operation of the channels has its own deadline.
    while (!worker_.wait(Deadline::after(std::chrono::minutes(1)))) {
    }
    for (const std::exception_ptr& thrown : {first_result.thrown, second_result.thrown}) {
      if (thrown) {
        std::rethrow_exception(thrown);
      }
    }
    return first_result.works && second_result.works;
  }

 private:
  struct CallResult {
    bool works = false;
    std::exception_ptr thrown{};
  };

  template <class Work, class Stop>
  static CallResult result_of(Work& work, Stop& stop) noexcept {
    try {
      return {work()};
    } catch (const std::exception& error) {
      Cause cause;
      cause.kind = CauseKind::exception;
      try {
        cause.text = error.what();
      } catch (...) {  // no memory for the message
      }
      stop(cause);
      return {false, std::current_exception()};
    }
  }

  async::WorkerThread worker_;
};

}  // namespace DTRAIN_NAMESPACE::topology
