#pragma once
/// @file
/// How the clocks of a group's ranks stand to rank 0's.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "dtrain/ddp/step_record.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Added to this rank's times it gives rank 0's, to within `uncertainty`. Both 0 where the ranks share a host, whose
/// processes share the clock.
struct ClockOffset {
  std::chrono::nanoseconds offset{};
  std::chrono::nanoseconds uncertainty{};
};

namespace detail {

inline constexpr int clock_questions = 8;

inline std::chrono::nanoseconds now_on_step_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(StepRecord::Clock::now().time_since_epoch());
}

/// The other half of ask_for_clock.
template <class Store>
void answer_about_clock_blocking(const Store& store) {
  for (int question = 0; question < clock_questions; ++question) {
    const std::string number = std::to_string(question);
    store.get("asked/" + number).wait();
    store.set("answered/" + number, std::to_string(now_on_step_clock().count())).wait();
  }
}

/// The question whose answer came back soonest counts (Cristian, "Probabilistic clock synchronization", 1989): rank 0
/// read its clock at some moment between asking and the answer.
template <class Store>
ClockOffset ask_for_clock_blocking(const Store& store) {
  ClockOffset best{{}, std::chrono::nanoseconds::max()};
  for (int question = 0; question < clock_questions; ++question) {
    const std::string number = std::to_string(question);
    const std::chrono::nanoseconds before = now_on_step_clock();
    store.set("asked/" + number, "").wait();
    const std::string answer = store.get("answered/" + number).wait();
    const std::chrono::nanoseconds after = now_on_step_clock();
    const std::chrono::nanoseconds theirs(std::strtoll(answer.c_str(), nullptr, 10));
    if (const auto half = (after - before) / 2; half < best.uncertainty) {
      best = {theirs - before - half, std::max(half, std::chrono::nanoseconds(1))};
    }
    store.erase("asked/" + number).wait();
    store.erase("answered/" + number).wait();
  }
  return best;
}

}  // namespace detail

/// This rank's offset. Collective, blocking: rank 0 answers the ranks of other hosts one after the other, a few round
/// trips to the store each. @param store the group's, with a prefix that nothing else uses meanwhile
template <class Store>
ClockOffset clock_offset_blocking(const Store& store, int rank, int world_size, int node_rank) {
  if (rank == 0) {
    store.set("node", std::to_string(node_rank)).wait();
    for (int other = 1; other < world_size; ++other) {
      const std::string place = "rank " + std::to_string(other);
      if (store.get(place).wait() == "elsewhere") {
        detail::answer_about_clock_blocking(store.with_prefix(place + "/"));
      }
      store.erase(place).wait();
    }
    store.erase("node").wait();
    return {};
  }
  const bool together = store.get("node").wait() == std::to_string(node_rank);
  const std::string place = "rank " + std::to_string(rank);
  store.set(place, together ? "together" : "elsewhere").wait();
  return together ? ClockOffset{} : detail::ask_for_clock_blocking(store.with_prefix(place + "/"));
}

}  // namespace DTRAIN_NAMESPACE::ddp
