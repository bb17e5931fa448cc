#pragma once
/// @file
/// A rank that trains in steps with and without the check of gradients that debug programs make
/// (DdpOptions::check_ready).

#include <cstdint>
#include <vector>

#include "bench/ddp_step/least_training.hpp"
#include "bench/intervals.hpp"
#include "bench/launched.hpp"
#include "dtrain/dtrain.hpp"

namespace bench {

/// The gradients are bound, which the check reads most often. Lines go to the benchmark.
class CheckedRank {
 public:
  CheckedRank(const dtrain::ProcessGroup<Policy>& group, const std::vector<std::int64_t>& sizes)
      : group_(group), unchecked_(sizes, group_, {.check_ready = false}), checked_(sizes, group_, {}) {
    if (!dtrain::is_debug_program()) {
      throw dtrain::Error(dtrain::Errc::usage, "gradients are checked in debug programs, and this one is none");
    }
  }

  /// The first sample of each is a warm-up.
  void measure(int samples) {
    for (int sample = 0; sample <= samples; ++sample) {
      for (int turn = 0; turn < 2; ++turn) {
        const bool checks = (sample + turn) % 2 == 1;
        group_.barrier();
        const std::int64_t begin = now_nanoseconds();
        (checks ? checked_ : unchecked_).step();
        const std::int64_t end = now_nanoseconds();
        if (sample > 0) {
          tell_interval(checks ? "checked" : "unchecked", sample, {begin, end});
        }
      }
    }
    tell_fact("buckets", static_cast<double>(checked_.ddp.statistics().buckets));
  }

 private:
  dtrain::ProcessGroup<Policy> group_;
  LeastTraining unchecked_;
  LeastTraining checked_;
};

}  // namespace bench
