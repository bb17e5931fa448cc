#pragma once
/// @file
/// group::Job: what all groups of one rank share, from joining the job to leaving it.

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/event_loop.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/ddp/claims.hpp"
#include "dtrain/launch/participation.hpp"
#include "dtrain/rendezvous/control_tasks.hpp"
#include "dtrain/rendezvous/participant.hpp"
#include "dtrain/stream/host/stream_set.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Owned by the rank's groups together. Its end leaves the job; where an exception unwinds the stack at that moment,
/// the rank has failed instead, and the others are told. Threads: all members from any thread, leave_blocking and the
/// end from one.
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
  Job(const launch::Worker& worker, std::string terms, std::shared_ptr<void> base = {})
      : base_(std::move(base)),
        timeout(worker.timeout),
        participant(launch::participant_options(worker, std::move(terms))),
        tasks(participant.control_thread(), participant.failure(), participant.membership().rank),
        streams(std::make_shared<stream::host::StreamSet>()) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  ~Job() {
    if (left_) {
      return;
    }
    try {
      if (std::uncaught_exceptions() > exceptions_at_start_) {
        report_exception("an exception ended the process group");
      } else if (!participant.failure()->failed()) {
        leave_blocking();
      }
    } catch (...) {
      // The others see the closed connection.
    }
  }

  /// @throws Error (invalid_argument) on the control thread, where a coroutine runs.
  void require_may_block() const {
    if (tasks.on_loop_thread()) {
      throw Error(Errc::invalid_argument,
                  "a collective or a call that blocks was made in a coroutine on the control thread, where it would "
                  "wait for itself; make it on a thread of the program");
    }
  }

  /// Blocking: until the job knows, 2 s at most.
  void report_exception(const std::string& text) noexcept {
    try {
      participant.failure()->report(exception_cause(text));
      if (!tasks.on_loop_thread()) {
        participant.failure()->block_until_failed(Deadline::after(std::chrono::seconds(2)));
      }
    } catch (...) {
      // The others see the closed connection.
    }
  }

  /// The same after `grace`, in which somebody may report something better. Blocking: no.
  void report_after(std::chrono::milliseconds grace, std::string text) noexcept {
    try {
      async::EventLoop& loop = participant.control_thread().loop();
      loop.post([&loop, grace, latch = participant.failure(), cause = exception_cause(std::move(text))] {
        loop.spawn_detached(report_later(loop, grace, latch, cause));
      });
    } catch (...) {
      // The others notice when this rank leaves without having taken part.
    }
  }

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

  void leave_blocking() {
    left_ = true;
    tasks.close_blocking();
    std::vector<std::shared_ptr<void>> kept;
    {
      const std::lock_guard lock(mutex_);
      for (Closable* channel : channels_) {
        channel->close();
      }
      kept.swap(kept_);
    }
    kept.clear();  // peers that wait in one of these channels are told, too
    participant.leave_blocking(Deadline::after(timeout));
  }

 private:
  const std::shared_ptr<void> base_;

 public:
  const std::chrono::nanoseconds timeout;  ///< of one collective
  rendezvous::Participant participant;
  rendezvous::ControlTasks tasks;
  const std::shared_ptr<stream::host::StreamSet> streams;  ///< of this rank, all groups and wrappers
  const std::shared_ptr<ddp::Claims> claims = std::make_shared<ddp::Claims>();  ///< of this rank's wrappers

 private:
  Cause exception_cause(std::string text) const {
    const rendezvous::Membership& self = participant.membership();
    return {CauseKind::exception, self.rank, self.host, std::move(text)};
  }

  static async::Task<void> report_later(async::EventLoop& loop, std::chrono::milliseconds grace,
                                        std::shared_ptr<FailureLatch> latch, Cause cause) {
    co_await loop.sleep_for(grace);
    latch->report(cause);
  }

  std::mutex mutex_;
  std::vector<Closable*> channels_;
  std::vector<std::shared_ptr<void>> kept_;  ///< goes before what it stands on
  bool left_ = false;
  int exceptions_at_start_ = std::uncaught_exceptions();
};

}  // namespace DTRAIN_NAMESPACE::group
