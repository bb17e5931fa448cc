#pragma once
/// @file
/// FormationWorkers: the elastic job's known workers, connections and last ranks; NewcomerBars: hosts whose new workers
/// have to wait. No I/O. FormationState owns both.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
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
  bool is_member = false;     ///< of the last attempt, as `rank`
  bool is_newcomer = false;   ///< had no progress when it was assigned, while the source had some
  bool has_finished = false;  ///< whether its function has returned in the last attempt
  int rank = -1;
  std::uint64_t attempt = 0;            ///< the last one that it was a rank of
  TrainingProgress progress;            ///< as the worker announced it
  TrainingProgress source;              ///< of its last attempt
  std::string error;                    ///< with which it ends; empty: none is known
  std::uint64_t order = 0;              ///< position of its announcement
  Deadline::Clock::time_point since{};  ///< its announcement, its exclusion, or the end of its connection
};

inline Cause loss_of(const Worker& worker, const std::string& how) {
  return {CauseKind::lost, worker.is_member ? worker.rank : -1, worker.host, how};
}

/// Threads: one.
class FormationWorkers {
 public:
  const std::vector<std::unique_ptr<Worker>>& all() const noexcept { return workers_; }
  /// The ranks of the last attempt, in order. A rank that is gone stays until set_members().
  const std::vector<Worker*>& members() const noexcept { return members_; }

  int connected() const {
    return static_cast<int>(
        std::count_if(workers_.begin(), workers_.end(), [](const auto& each) { return each->connection != 0; }));
  }
  /// Whether a rank of the last attempt waits that has not trained in it, so that no rank has committed a step there.
  bool has_rank_before(std::uint64_t attempt) const {
    return std::any_of(members_.begin(), members_.end(), [attempt](const Worker* each) {
      return each->standing == Standing::waiting && each->progress.attempt < attempt;
    });
  }
  /// Rule 6 of FormationState: the least progress with which a worker has the job's state, behind the last attempt. All
  /// ranks of an attempt take part in each step. So where one of them is here and has not trained in it, no rank has
  /// committed a step there: whose state sufficed to form it has the state still, though the source may have been
  /// ahead.
  /// @param is_complete all ranks have joined it @param source of it @param needed sufficed to form it
  TrainingProgress least_with_state(std::uint64_t attempt, bool is_complete, const TrainingProgress& source,
                                    const TrainingProgress& needed) const {
    const bool has_trained_state = needed.has_trained() || source.steps == needed.steps;  // a receiver staged it
    if (has_rank_before(attempt)) {
      return has_trained_state ? needed : source;
    }
    const TrainingProgress& unjoined = source.steps == needed.steps ? needed : source;
    return is_complete ? TrainingProgress{attempt, source.steps} : unjoined;
  }
  bool has_excluded() const {
    return std::any_of(workers_.begin(), workers_.end(),
                       [](const auto& each) { return each->standing == Standing::excluded; });
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
  std::optional<Refused> refusal_of(const Announce& message, std::uint64_t job) {
    std::optional<Refused> refused = difference_of(message, job);
    if (refused) {
      refused_ = {message.worker, refused->sentence};
    }
    return refused;
  }

  /// Why a process cannot go on: its own error, or the refusal that it got; empty: neither is known.
  std::string error_of(const std::string& host_id, std::int64_t process) const {
    const Worker* const found = find(host_id, process);
    const bool is_refused = found == nullptr && refused_.first.process == process && refused_.first.host_id == host_id;
    return found != nullptr ? found->error : is_refused ? refused_.second : std::string();
  }

  /// Adds a worker that is not refused.
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

  /// Sets the ranks of the next attempt, in order. Drops workers that are gone.
  void set_members(std::vector<Worker*> members) {
    for (Worker* each : members_) {
      each->is_member = false;
    }
    std::erase_if(workers_, [](const auto& each) { return each->standing == Standing::gone; });
    members_ = std::move(members);
    for (Worker* each : members_) {
      each->is_member = true;
    }
  }

 private:
  std::optional<Refused> difference_of(const Announce& message, std::uint64_t job) const {
    if (message.job != 0 && message.job != job) {
      return Refused{"it is a worker of another job, whose store was at this address before; end it", true};
    }
    const auto difference = workers_.empty() || message.settings == settings_
                                ? std::nullopt
                                : first_difference(message.settings, settings_);
    if (difference) {
      return Refused{
          format_text("it has {}, and the workers of the job have {}; start all workers with the same program "
                      "and settings",
                      {difference->first, difference->second})};
    }
    const Worker* const worker = find(message.worker);
    const std::uint64_t attempt = worker == nullptr ? 0 : worker->attempt;
    const TrainingProgress most = worker == nullptr ? TrainingProgress{} : std::max(worker->progress, worker->source);
    if (message.progress > most && (attempt == 0 || message.progress.attempt != attempt)) {
      return Refused{format_text("it states the progress of attempt {}, in which it was no rank; end it",
                                 {message.progress.attempt}),
                     true};
    }
    return std::nullopt;
  }

  template <class Holds>
  Worker* find_that(Holds holds) const {
    for (const std::unique_ptr<Worker>& each : workers_) {
      if (holds(*each)) {
        return each.get();
      }
    }
    return nullptr;
  }

  std::string settings_;                      ///< of all workers
  std::pair<WorkerId, std::string> refused_;  ///< the last worker that was refused, and why
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> members_;
};

/// Rule 2 of FormationState: the workers of the greatest progress, at most `most`, in the order of their next ranks.
inline std::vector<Worker*> next_ranks(std::vector<Worker*> candidates, int most) {
  std::sort(candidates.begin(), candidates.end(), [](const Worker* a, const Worker* b) {
    const auto place = [](const Worker& of) { return of.is_member ? static_cast<std::uint64_t>(of.rank) : ~0ull; };
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

/// Hosts of newcomers that have broken an attempt before its first commit: newcomers of such a host wait.
class NewcomerBars {
 public:
  using Instant = Deadline::Clock::time_point;

  /// Bars the host for 1 s, and each further time twice as long.
  void add(const std::string& host_id, std::chrono::seconds longest, Instant now) {
    Bar& bar = bars_[host_id];
    bar.time = std::clamp(2 * bar.time, std::chrono::seconds(1), longest);
    bar.until = now + bar.time;
  }
  void clear() noexcept { bars_.clear(); }

  /// When the worker may become a rank; nullopt: now.
  std::optional<Instant> until(const Worker& worker, Instant now) const {
    const auto found = bars_.find(worker.id.host_id);
    const bool is_barred = found != bars_.end() && !worker.progress.has_trained() && found->second.until > now;
    return is_barred ? std::optional(found->second.until) : std::nullopt;
  }

 private:
  struct Bar {
    Instant until{};
    std::chrono::seconds time{0};
  };

  std::map<std::string, Bar> bars_;  ///< by host id
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
