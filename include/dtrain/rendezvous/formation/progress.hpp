#pragma once
/// @file
/// TrainingProgress: how far an elastic job's worker has come; the greatest state goes on. Assignment: its rank in an
/// attempt. WorkerId: its number.

#include <compare>
#include <cstdint>
#include <string>

#include "dtrain/core/version.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Compares by the attempt first: an excluded worker may have as many steps as the others, but other values. Two states
/// of equal progress are equal, unless a ShardedOptimizer was used (`is_sharded`). `steps` never decreases: an older
/// checkpoint that is loaded adds to `repeated`. (The attempt is what Raft calls a term: Ongaro and Ousterhout, "In
/// Search of an Understandable Consensus Algorithm", 2014, section 5.4.1.)
struct TrainingProgress {
  std::uint64_t attempt = 0;   ///< the last one in which the state was trained; attempts count from 1; 0: never
  std::uint64_t steps = 0;     ///< committed since the job began, some of them several times
  std::uint64_t repeated = 0;  ///< the steps of these that a checkpoint of fewer steps has taken back
  bool is_sharded = false;     ///< a ShardedOptimizer has begun a step or loaded its state, which is lost with a rank

  bool has_trained() const noexcept { return attempt != 0; }
  friend bool operator==(const TrainingProgress&, const TrainingProgress&) = default;  // nvcc wants it written
  friend auto operator<=>(const TrainingProgress&, const TrainingProgress&) = default;
};

/// The progress of one worker, which changes with its state. Pure.
class WorkerProgress {
 public:
  const TrainingProgress& value() const noexcept { return value_; }
  /// The step at which the training goes on.
  std::uint64_t step() const noexcept { return value_.steps - value_.repeated; }

  /// The whole state of the attempt's source is in the worker's memory, and its progress with it.
  void received(const TrainingProgress& source) noexcept { value_ = source; }
  /// The worker begins to train in an attempt: before its first collective there.
  void began(std::uint64_t attempt) noexcept { value_.attempt = attempt; }
  /// One more step is in the worker's state.
  void committed() noexcept { ++value_.steps; }
  /// A ShardedOptimizer has begun a step or loaded its state.
  void sharded() noexcept { value_.is_sharded = true; }
  /// A checkpoint of that step was loaded.
  void resumed(std::uint64_t step) noexcept {
    const std::uint64_t present = this->step();
    if (step < present) {
      value_.repeated += present - step;
    } else {
      value_.steps += step - present;
    }
  }

 private:
  TrainingProgress value_;
};

/// Identity of a worker until its end, independent of its ranks.
struct WorkerId {
  std::string host_id;
  std::int64_t process = 0;
  std::uint64_t nonce = 0;  ///< random, because the system reuses process ids

  friend bool operator==(const WorkerId&, const WorkerId&) = default;
};

struct Assignment {
  static constexpr MessageKind message_kind = MessageKind::assignment;
  std::uint64_t job = 0;      ///< random
  std::uint64_t attempt = 0;  ///< the attempt's number, from 1
  int rank = 0;
  int world_size = 1;
  TrainingProgress source;  ///< progress of rank 0, whose state all ranks have before they train
  int receivers = 0;        ///< number of ranks with another progress
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
