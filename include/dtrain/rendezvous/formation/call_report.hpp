#pragma once
/// @file
/// CallReport: a worker's notice to its elastic job's store, on request, that the program calls dtrain.

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Threads: all members from any thread.
class CallReport {
 public:
  /// @param send sends the report, and does not block; it may be called after the connection's owner has ended
  explicit CallReport(std::function<void(std::uint64_t attempt)> send) : send_(std::move(send)) {}

  /// The store asks, in an attempt.
  void request(std::uint64_t attempt) noexcept { attempt_.store(attempt, std::memory_order_relaxed); }

  /// The program calls dtrain: at each call, so it costs one load.
  void on_call() {
    if (attempt_.load(std::memory_order_relaxed) == 0) return;
    if (const std::uint64_t attempt = attempt_.exchange(0, std::memory_order_relaxed)) send_(attempt);
  }

 private:
  std::atomic<std::uint64_t> attempt_{0};  ///< the attempt in which the store has asked; 0: it has not
  std::function<void(std::uint64_t)> send_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
