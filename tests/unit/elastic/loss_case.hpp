#pragma once
/// @file
/// Case: where ranks as threads are lost in an elastic job. rank_loss.hpp runs it.

#include <array>
#include <cstddef>
#include <optional>
#include <random>
#include <string>

#include "dtrain/stream/host/progress.hpp"

namespace rank_loss {

/// What a rank is about to do, or has half done, when it is lost. Inside one all-reduce of a communicator a thread
/// cannot be stopped: there processes are killed (integration/elastic_storm_test.cpp).
enum class Point {
  before_forward,
  after_forward,
  first_ready,   ///< one gradient is ready
  last_ready,    ///< all are
  launch,        ///< of the first bucket's all-reduce
  half_reduced,  ///< the first half of a bucket is reduced
  finish,
  optimizer,      ///< one layer is updated
  commit,         ///< all are, and the step is not committed
  announce,       ///< its attempt has failed, and it has not announced itself again
  assignment,     ///< it has its rank in the next attempt, and does not join
  join,           ///< the store has its Join
  opening,        ///< the group's channel
  allocating,     ///< memory of the wrapper
  half_sent,      ///< rank 0, of the state
  half_received,  ///< of the state
  entering,       ///< the function of train()
};
constexpr std::array<const char*, 17> point_names{
    "before_forward", "after_forward", "first_ready", "last_ready",    "launch",     "half_reduced",
    "finish",         "optimizer",     "commit",      "announce",      "assignment", "join",
    "opening",        "allocating",    "half_sent",   "half_received", "entering"};
constexpr int workers = 3;

/// How a backward pass calls ready().
enum class Caller { program, thread, may_not_throw };

struct Case {
  std::size_t index = 0;
  Point first{};
  int victim = 0;               ///< place of the worker that is lost at `first`; half_sent: that of the receiver
  std::optional<Point> second;  ///< where another worker is lost later
  Caller caller{};
  bool binds = false;
  bool replaces_late = false;  ///< the lost worker's replacement comes after the others' next commit
  dtrain::stream::host::Progress progress{};

  /// Points, victims, and points of a second loss or none.
  static constexpr std::size_t count = point_names.size() * workers * (point_names.size() + 1);

  /// @param index below count
  static Case at(std::size_t index) {
    Case found;
    found.index = index;
    std::minstd_rand random(static_cast<unsigned>(index) + 1);
    found.victim = static_cast<int>(index % workers);
    index /= workers;
    found.first = static_cast<Point>(index % point_names.size());
    index /= point_names.size();
    if (index > 0) found.second = static_cast<Point>(index - 1);
    found.caller = static_cast<Caller>(random() % 3);
    found.binds = random() % 2 == 0;
    const bool needs_newcomer =
        found.second == Point::half_sent || found.second == Point::half_received || found.second == Point::announce;
    found.replaces_late = needs_newcomer || random() % 2 == 0;
    found.progress =
        random() % 2 == 0 ? dtrain::stream::host::Progress::thread : dtrain::stream::host::Progress::caller;
    return found;
  }

  /// The worker that comes once the others have committed, so that the point of the first loss is reached; -1: none.
  int newcomer() const {
    if (first == Point::half_sent || first == Point::half_received) return victim;
    return first == Point::announce ? (victim + 1) % workers : -1;
  }

  std::string text() const {
    const auto name = [](Point point) { return std::string(point_names[static_cast<std::size_t>(point)]); };
    return "case " + std::to_string(index) + ", worker " + std::to_string(victim) + " at " + name(first) +
           (second ? ", another at " + name(*second) : "");
  }
};

}  // namespace rank_loss
