#pragma once
/// @file
/// CompressedTraffic: bytes that compression saves on the network, and its time. TrafficCounter: their sums, counted by
/// any thread.

#include <atomic>
#include <chrono>
#include <cstdint>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// Savings and cost of compression on one rank, in all. Bytes are bytes of all-reduces. Another collective counts as
/// half an all-reduce, because it sends each element once and not twice.
/// @ingroup times
struct CompressedTraffic {
  std::uint64_t bytes = 0;                 ///< bytes of all-reduces without compression
  std::uint64_t bytes_sent = 0;            ///< bytes of all-reduces with compression
  std::chrono::nanoseconds compressing{};  ///< compressing and decompressing

  friend bool operator==(const CompressedTraffic&, const CompressedTraffic&) = default;
};

/// `channel.compressed_traffic()`; zeros for a channel without it.
template <class Channel>
CompressedTraffic compressed_traffic_of(const Channel& channel) noexcept {
  if constexpr (requires { channel.compressed_traffic(); }) {
    return channel.compressed_traffic();
  } else {
    return {};
  }
}

/// Threads: any.
class TrafficCounter {
 public:
  /// An all-reduce of so many bytes that a compression replaces.
  void replaces(std::uint64_t bytes) noexcept { bytes_.fetch_add(bytes, std::memory_order_relaxed); }

  void sends_all_reduce(std::uint64_t bytes) noexcept { sends(2 * bytes); }
  void sends(std::uint64_t bytes) noexcept { sent_halves_.fetch_add(bytes, std::memory_order_relaxed); }

  /// Calls `work()`, and adds the time that it takes.
  template <class Work>
  void time(Work&& work) noexcept {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::nanoseconds taken = std::chrono::steady_clock::now() - begin;
    nanoseconds_.fetch_add(taken.count(), std::memory_order_relaxed);
  }

  CompressedTraffic total() const noexcept {
    return {bytes_.load(std::memory_order_relaxed), sent_halves_.load(std::memory_order_relaxed) / 2,
            std::chrono::nanoseconds(nanoseconds_.load(std::memory_order_relaxed))};
  }

 private:
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> sent_halves_{0};
  std::atomic<std::chrono::nanoseconds::rep> nanoseconds_{0};
};

}  // namespace DTRAIN_NAMESPACE
