#pragma once
/// @file
/// group::Job: what all groups of one rank share, from joining the job to leaving it.

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/owning_process.hpp"
#include "dtrain/ddp/claims.hpp"
#include "dtrain/launch/worker.hpp"
#include "dtrain/rendezvous/control_tasks.hpp"
#include "dtrain/rendezvous/participant.hpp"
#include "dtrain/stream/host/stream_set.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Owned by the rank's groups together. Its end leaves the job; where an exception unwinds the stack at that moment,
/// the rank has failed instead, and the others are told. A process that was forked since is not the rank: there reports
/// do nothing, and nothing ends. Threads: all members from any thread, leave_blocking and the end from one.
class Job {
 public:
  /// A channel of this rank that closes when the rank leaves: its peers are told so instead of waiting for this one.
  class Closable {
   public:
    virtual void close() noexcept = 0;

   protected:
    ~Closable() = default;
  };

  /// Collective, blocking: joins as the rank that `worker` describes. @throws as Participant.
  /// @param base stays until all else of the job has ended
  Job(const launch::Worker& worker, std::string terms, std::shared_ptr<void> base = {});
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  ~Job();

  /// @throws Error (invalid_argument) on the control thread, where a coroutine runs, and in a process that was forked
  /// since.
  void require_may_block() const;

  /// @param whose the rank that the exception is about, where that is another one. Blocking: until the job knows, 2 s
  /// at most.
  void report_exception(const std::string& text, std::optional<int> whose = {}) noexcept;

  /// The same after `grace`, in which somebody may report something better. Blocking: no.
  void report_after(std::chrono::milliseconds grace, std::string text) noexcept;

  /// Keeps `work` until the end.
  void outlive(std::shared_ptr<void> work) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      kept_.push_back(std::move(work));
    } catch (...) {
      // Then it ends now; the others may hear a less good cause.
    }
  }

  /// Lifetime: `channel` is removed before it goes.
  void add(Closable& channel) {
    const std::lock_guard lock(mutex_);
    channels_.push_back(&channel);
  }
  void remove(Closable& channel) noexcept {
    const std::lock_guard lock(mutex_);
    channels_.erase(std::remove(channels_.begin(), channels_.end(), &channel), channels_.end());
  }

  void leave_blocking();

 private:
  const std::shared_ptr<void> base_;

 public:
  const std::chrono::nanoseconds timeout;  ///< of one collective
  rendezvous::Participant participant;
  rendezvous::ControlTasks tasks;
  const std::shared_ptr<stream::host::StreamSet> streams;  ///< of this rank, all groups and wrappers
  const std::shared_ptr<ddp::Claims> claims = std::make_shared<ddp::Claims>();  ///< of this rank's wrappers

 private:
  Cause exception_cause(std::string text, std::optional<int> whose = {}) const;

  std::mutex mutex_;
  std::vector<Closable*> channels_;
  std::vector<std::shared_ptr<void>> kept_;  ///< goes before what it stands on
  bool left_ = false;
  const OwningProcess process_;
  int exceptions_at_start_ = std::uncaught_exceptions();
};

}  // namespace DTRAIN_NAMESPACE::group

#if DTRAIN_DEFINITIONS
#include "dtrain/group/job_definitions.hpp"
#endif
