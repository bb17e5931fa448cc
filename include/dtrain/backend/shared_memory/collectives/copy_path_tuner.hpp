#pragma once
/// @file
/// CopyPathTuner: measured choice between cached and non-temporal copies of chunks.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/non_temporal_copy.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Between cores that share a level-3 cache, an ordinary copy is up to twice as fast; between others, a copy past the
/// caches (measured on two cores of a Zen 3 that its host moved about). No rank knows which case applies, and it may
/// change. Hence of every `period` long operations, each path is used for two and timed, and the faster one serves the
/// rest. The bytes are the same, so ranks need not agree. Threads: the one that runs the work.
class CopyPathTuner {
 public:
  using Clock = std::chrono::steady_clock;

  /// Before an operation. @param bytes that a rank stages in it
  void begin(std::size_t bytes) noexcept {
    counts_ = bytes >= least_bytes;
    timed_ = counts_ && operations_ % period < 4;
    streamed_ = timed_ ? operations_ % period < 2 : best_[1] <= best_[0];
    spent_ = {};
    bytes_ = bytes;
  }

  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const noexcept {
    streamed_ ? kernels::stream_bytes(to, from, bytes) : kernels::copy_bytes(to, from, bytes);
  }

  /// Runs and times some work of the operation, without the waits for other ranks.
  template <class F>
  auto time(F work) noexcept {
    const Clock::time_point start = timed_ ? Clock::now() : Clock::time_point();
    const auto result = work();
    spent_ += timed_ ? Clock::now() - start : Clock::duration();
    return result;
  }

  /// After an operation whose chunks were all copied.
  void end() noexcept {
    if (counts_ && operations_++ % period == 0) {
      best_.fill(std::numeric_limits<double>::max());
    }
    if (timed_) {
      double& best = best_[streamed_ ? 1 : 0];
      best = std::min(best, static_cast<double>(spent_.count()) / static_cast<double>(bytes_));
    }
  }

 private:
  static constexpr std::uint64_t period = 128;
  static constexpr std::size_t least_bytes = std::size_t{32} << 10;

  std::uint64_t operations_ = 0;
  std::array<double, 2> best_{};  ///< clock ticks per byte: through the caches, past them
  bool counts_ = false;
  bool timed_ = false;
  bool streamed_ = true;
  Clock::duration spent_{};
  std::size_t bytes_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
