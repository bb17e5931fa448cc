#pragma once
/// @file
/// FormationWorkers of a FormationState: an elastic job's known workers, their connections and last ranks. No I/O.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/formation/formation_messages.hpp"
#include "dtrain/rendezvous/formation/progress.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Number of a worker's connection, never used twice.
using ConnectionId = std::uint64_t;

enum class Standing : std::uint8_t {
  waiting = 1,  ///< has announced itself
  assigned,     ///< is a rank of the last attempt, and has not announced itself since
  excluded,     ///< is not waited for, and may come back
  gone,         ///< its process has ended
};

struct Worker {
  WorkerId id;
  std::string host;
  ConnectionId connection = 0;  ///< 0: there is none
  Standing standing = Standing::waiting;
  int rank = -1;                             ///< its rank in the last attempt; -1: none
  bool is_newcomer = false;                  ///< had no progress when rank 0 had some, and has committed no step yet
  bool has_finished = false;                 ///< whether its function has returned in the last attempt
  std::uint64_t attempt = 0;                 ///< the last one that it was a rank of
  TrainingProgress progress;                 ///< the progress that the worker announced
  TrainingProgress source;                   ///< the progress of its last attempt's rank 0
  std::string error;                         ///< the error with which it ends; empty: none is known
  std::optional<Cause> thrown;               ///< the program's error in the last attempt, until it is attributed
  std::string unlike;                        ///< why its program is unlike that of the others, if it is
  bool is_asked = false;                     ///< the store waits for its next call of dtrain
  bool has_called = false;                   ///< it has called since
  std::uint64_t end_digest = 0;              ///< Finished::digest
  std::uint64_t order = 0;                   ///< position of its announcement
  Deadline::Clock::time_point since{};       ///< its announcement, its exclusion, or the end of its connection
  Deadline::Clock::time_point told_until{};  ///< end of its host's bar, as the worker was told last

  /// Whether it is a rank of the last attempt.
  bool is_member() const noexcept { return rank >= 0; }
  /// Whether it is connected, and is not to end: the connection of a worker that is told to end stays until then.
  bool is_connected() const noexcept { return connection != 0 && standing != Standing::excluded; }
};

inline Cause loss_of(const Worker& worker, const std::string& how) {
  return {CauseKind::lost, worker.rank, worker.host, how};
}

/// Threads: one.
class FormationWorkers {
 public:
  const std::vector<std::unique_ptr<Worker>>& all() const noexcept { return workers_; }
  /// The ranks of the last attempt, in order. A rank that is gone stays until set_members().
  const std::vector<Worker*>& members() const noexcept { return members_; }

  /// Workers that are connected, without those that were told to end: others may come in their place.
  int connected() const {
    return static_cast<int>(
        std::count_if(workers_.begin(), workers_.end(), [](const auto& each) { return each->is_connected(); }));
  }
  bool has_excluded() const {
    return find_that([](const Worker& each) { return each.standing == Standing::excluded; }) != nullptr;
  }
  /// Whether the job keeps its state without that worker: another one is connected that has trained as late, or whose
  /// state was the source of a later attempt.
  bool can_spare(const Worker& worker) const {
    const Worker* const other = find_that([&](const Worker& each) {
      const bool was_source = each.attempt > worker.attempt && each.progress == each.source;
      return &each != &worker && each.is_connected() && (each.progress.attempt >= worker.attempt || was_source);
    });
    return other != nullptr;
  }
  Worker* member(int rank) const {
    return rank < 0 || rank >= static_cast<int>(members_.size()) ? nullptr : members_[static_cast<std::size_t>(rank)];
  }
  Worker* find(const WorkerId& id) const {
    return find_that([&](const Worker& each) { return each.id == id; });
  }
  Worker* find(const std::string& host_id, std::int64_t process) const {
    return find_that([&](const Worker& each) {
      return each.id.process == process && each.id.host_id == host_id && each.standing != Standing::gone;
    });
  }
  Worker* find(ConnectionId connection) const {
    return connection == 0 ? nullptr : find_that([&](const Worker& each) { return each.connection == connection; });
  }

  /// Why a process is no worker of this job, or its Announce is impossible.
  /// @param needed attempt of the least progress with the job's state: a worker below it may have been dropped
  std::optional<Refused> refusal_of(const Announce& message, std::uint64_t job, std::uint64_t needed) {
    if (message.job != 0 && message.job != job) {
      return refuse(message, {"it is a worker of another job, whose store was at this address before; end it", true});
    }
    if (const auto difference = workers_.empty() ? std::nullopt : first_difference(message.settings, settings_)) {
      return refuse(message, {format_text("it has {}, and the workers of the job have {}; start all workers with the "
                                          "same program and settings",
                                          {difference->first, difference->second})});
    }
    Worker* const worker = find(message.worker);
    if (worker != nullptr && !worker->unlike.empty()) {
      worker->standing = Standing::excluded;
      return refuse(message, {worker->unlike});
    }
    const std::uint64_t attempt = worker == nullptr ? 0 : worker->attempt;
    const TrainingProgress most = worker == nullptr ? TrainingProgress{} : std::max(worker->progress, worker->source);
    const bool was_dropped = worker == nullptr && message.job == job && message.progress.attempt < needed;
    if (!was_dropped && message.progress > most && (attempt == 0 || message.progress.attempt != attempt)) {
      return refuse(message, {format_text("it states the progress of attempt {}, in which it was no rank; end it",
                                          {message.progress.attempt}),
                              true});
    }
    return std::nullopt;
  }

  /// Why a process cannot go on: its own error, or the rejection that it got; empty: neither is known.
  std::string error_of(const std::string& host_id, std::int64_t process) const {
    const Worker* const found = find(host_id, process);
    const bool is_refused = found == nullptr && refused_.first.process == process && refused_.first.host_id == host_id;
    return found != nullptr ? found->error : is_refused ? refused_.second : std::string();
  }

  /// Adds a worker that is not rejected.
  Worker& add(const Announce& message) {
    workers_.push_back(std::make_unique<Worker>());
    Worker& worker = *workers_.back();
    worker.id = message.worker;
    worker.host = message.host;
    settings_ = message.settings;  // those of the others, if there are any
    return worker;
  }

  /// Drops a worker that was never a rank: otherwise each process that connects would take memory. A worker that has
  /// reported its error stays until its process has ended.
  void forget_if_unknown(const Worker& worker) {
    if (worker.attempt == 0 && worker.connection == 0 && worker.error.empty()) {
      std::erase_if(workers_, [&](const auto& each) { return each.get() == &worker; });
    }
  }

  /// Notes that the ranks are asked for their next call of dtrain, or are not any more. @returns those to ask now
  std::vector<const Worker*> ask_members(bool asks) {
    std::vector<const Worker*> found;
    for (Worker* each : members_) {
      if (!std::exchange(each->is_asked, asks) && asks && each->connection != 0) found.push_back(each);
      each->has_called = each->has_called && asks;
    }
    return found;
  }

  /// Sets the ranks of the next attempt, in order. Drops workers that are gone, and those excluded before `long_ago`
  /// whose last attempt came before the attempt `needed`: nobody says when a process of another host ends.
  void set_members(std::vector<Worker*> members, std::uint64_t needed, Deadline::Clock::time_point long_ago) {
    for (Worker* each : members_) {
      each->rank = -1;
    }
    std::erase_if(workers_, [&](const auto& each) {
      const bool is_old = each->since < long_ago && each->attempt < needed;
      return each->standing == Standing::gone || (each->standing == Standing::excluded && is_old);
    });
    members_ = std::move(members);
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      members_[rank]->rank = static_cast<int>(rank);
    }
  }

 private:
  Refused refuse(const Announce& message, Refused refused) {
    refused_ = {message.worker, refused.sentence};
    return refused;
  }

  template <class Holds>
  Worker* find_that(Holds holds) const {
    for (const std::unique_ptr<Worker>& each : workers_) {
      if (holds(*each)) return each.get();
    }
    return nullptr;
  }

  std::string settings_;                      ///< the settings of all workers
  std::pair<WorkerId, std::string> refused_;  ///< the last worker that was rejected, and why
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> members_;
};

/// Rule 2 of FormationState: the workers of the greatest progress, at most `most`, in the order of their next ranks.
inline std::vector<Worker*> next_ranks(std::vector<Worker*> candidates, int most) {
  std::sort(candidates.begin(), candidates.end(), [](const Worker* a, const Worker* b) {
    const auto place = [](const Worker& of) { return static_cast<unsigned>(of.rank); };  // the last, if it had none
    return std::make_tuple(b->progress, place(*a), a->order) < std::make_tuple(a->progress, place(*b), b->order);
  });
  candidates.resize(std::min(candidates.size(), static_cast<std::size_t>(most)));
  for (auto first = candidates.begin(); first != candidates.end();) {  // ranks of a host are neighbours in a ring
    first = std::stable_partition(first, candidates.end(), [&host = (*first)->id.host_id](const Worker* each) {
      return each->id.host_id == host;
    });
  }
  return candidates;
}

struct LastAttempt {
  std::uint64_t attempt = 0;
  TrainingProgress source;   ///< the progress of its rank 0
  TrainingProgress needed;   ///< the least progress that sufficed to form it
  bool is_complete = false;  ///< all of its ranks have joined it
};

/// Rule 6 of FormationState: the least progress with which a worker has the job's state after the last attempt. All
/// ranks of an attempt take part in each step. So if one of its ranks is here and has not trained in it, that attempt
/// committed no step. A worker whose progress sufficed to form that attempt then still has the job's state, even if the
/// source had more.
inline TrainingProgress least_with_state(const std::vector<Worker*>& ranks, const LastAttempt& last) {
  const bool has_rank_before = std::any_of(ranks.begin(), ranks.end(), [&last](const Worker* each) {
    return each->standing == Standing::waiting && each->progress.attempt < last.attempt;
  });
  // A receiver keeps its state until the source's is whole.
  const bool is_staged = last.source.steps == last.needed.steps;
  if (has_rank_before) return last.needed.has_trained() || is_staged ? last.needed : last.source;
  return last.is_complete ? TrainingProgress{last.attempt, last.source.steps} : is_staged ? last.needed : last.source;
}

/// Why the ranks of an attempt that has finished the job have not the same state: a sentence; empty if they have.
inline std::string differing_states(const std::vector<Worker*>& ranks) {
  const auto compares = [](const Worker* each) { return each->end_digest != 0; };
  const auto first = std::find_if(ranks.begin(), ranks.end(), compares);
  const auto found = std::find_if(first, ranks.end(), [&](const Worker* each) {
    return compares(each) && each->end_digest != (*first)->end_digest;
  });
  if (found == ranks.end()) return {};
  return format_text(
      "the job has finished, and the kept state of rank {} on host {} differs from that of rank {}: a rank wrote what "
      "is "
      "kept outside of commit(), or its step does not depend on the reduced gradients and the kept state alone, or the "
      "ranks' processors or libraries round it differently; DTRAIN_CHECK_VALUES=1 compares the ranks' values after "
      "each "
      "step",
      {(*found)->rank, (*found)->host, (*first)->rank});
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
