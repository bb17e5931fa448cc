#pragma once
/// @file
/// topology::ParallelRunner: a second thread of an algorithm, so that one chunk is sent while another is reduced.

#include <chrono>
#include <exception>

#include "dtrain/async/worker_thread.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Threads: one at a time. Lifetime: destroyed before what its work uses.
class ParallelRunner {
 public:
  /// Runs `first()` in this thread and `second()` in the other, which return whether their channels still work. Where
  /// one throws, `stop(cause)` makes the other end. Blocking: until both have returned.
  /// @returns whether both do. @throws what first() throws, else what second() throws
  template <class First, class Second, class Stop>
  bool run_both(First first, Second second, Stop stop) {
    CallResult second_result;
    auto work = [&]() noexcept { second_result = result_of(second, stop); };
    worker_.start(work);
    const CallResult first_result = result_of(first, stop);
    // Bounded, although it tries again: the channels' operations end by deadlines of their first_result.
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
      } catch (...) {  // out of memory for the sentence
      }
      stop(cause);
      return {false, std::current_exception()};
    }
  }

  async::WorkerThread worker_;
};

}  // namespace DTRAIN_NAMESPACE::topology
