#pragma once
/// @file
/// topology::Companion: a second thread of an algorithm, so that a link carries one piece while another is worked on.

#include <chrono>
#include <exception>

#include "dtrain/async/worker.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Threads: one at a time. Lifetime: destroyed before what its work uses.
class Companion {
 public:
  /// Runs `here()` in this thread and `beside()` in the other, which say whether their channels still serve. Where one
  /// throws, `stop(cause)` makes the other end. Blocking: until both have returned.
  /// @returns whether both say so. @throws what here() throws, else what beside() throws
  template <class Here, class Beside, class Stop>
  bool run_both(Here here, Beside beside, Stop stop) {
    Outcome there;
    auto work = [&]() noexcept { there = outcome_of(beside, stop); };
    worker_.start(work);
    const Outcome own = outcome_of(here, stop);
    // Bounded, although it tries again: the channels' operations end by deadlines of their own.
    while (!worker_.wait(Deadline::after(std::chrono::minutes(1)))) {
    }
    for (const std::exception_ptr& thrown : {own.thrown, there.thrown}) {
      if (thrown) {
        std::rethrow_exception(thrown);
      }
    }
    return own.serves && there.serves;
  }

 private:
  struct Outcome {
    bool serves = false;
    std::exception_ptr thrown{};
  };

  template <class Work, class Stop>
  static Outcome outcome_of(Work& work, Stop& stop) noexcept {
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

  async::Worker worker_;
};

}  // namespace DTRAIN_NAMESPACE::topology
