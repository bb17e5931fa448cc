#pragma once
/// @file
/// Clock offset: the difference between rank 0's clock and a rank's, estimated over the store.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "dtrain/core/serializer.hpp"
#include "dtrain/ddp/profile/step_record.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A time of this rank plus `offset` is rank 0's time, to within `uncertainty`. Both are 0 if the ranks share a host,
/// because its processes share the clock.
struct ClockOffset {
  std::chrono::nanoseconds offset{};
  std::chrono::nanoseconds uncertainty{};
};

namespace detail {

inline constexpr int clock_samples = 8;

inline std::chrono::nanoseconds now_on_step_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(StepRecord::Clock::now().time_since_epoch());
}

/// Rank 0's half of sample_clock_blocking.
template <class Store>
void serve_clock_blocking(const Store& store) {
  for (int sample = 0; sample < clock_samples; ++sample) {
    const std::string number = std::to_string(sample);
    store.take("request/" + number, 1).wait();
    store.set("reply/" + number, to_bytes(now_on_step_clock())).wait();
  }
}

/// Uses the request with the shortest round trip (Cristian, "Probabilistic clock synchronization", 1989): rank 0 read
/// its clock at some moment between request and reply.
template <class Store>
ClockOffset sample_clock_blocking(const Store& store) {
  ClockOffset best{{}, std::chrono::nanoseconds::max()};
  for (int sample = 0; sample < clock_samples; ++sample) {
    const std::string number = std::to_string(sample);
    const std::chrono::nanoseconds before = now_on_step_clock();
    store.set("request/" + number, "").wait();
    const std::string reply = store.take("reply/" + number, 1).wait();
    const std::chrono::nanoseconds after = now_on_step_clock();
    const auto theirs = from_bytes<std::chrono::nanoseconds>(reply, "rank 0's time");
    if (const auto half = (after - before) / 2; half < best.uncertainty) {
      best = {theirs - before - half, std::max(half, std::chrono::nanoseconds(1))};
    }
  }
  return best;
}

}  // namespace detail

/// This rank's offset. Collective, blocking: rank 0 serves the ranks of other hosts one after the other, with a few
/// round trips to the store each. @param store the group's, with a prefix in no other use meanwhile
template <class Store>
ClockOffset clock_offset_blocking(const Store& store, int rank, int world_size, int node_rank) {
  if (world_size == 1) {
    return {};
  }
  if (rank == 0) {
    store.set("node", std::to_string(node_rank)).wait();
    for (int other = 1; other < world_size; ++other) {
      const std::string key = "rank " + std::to_string(other);
      if (store.take(key, 1).wait() == "other node") {
        detail::serve_clock_blocking(store.with_prefix(key + "/"));
      }
    }
    return {};
  }
  const bool same_node = store.take("node", world_size - 1).wait() == std::to_string(node_rank);
  const std::string key = "rank " + std::to_string(rank);
  store.set(key, same_node ? "same node" : "other node").wait();
  return same_node ? ClockOffset{} : detail::sample_clock_blocking(store.with_prefix(key + "/"));
}

}  // namespace DTRAIN_NAMESPACE::ddp
