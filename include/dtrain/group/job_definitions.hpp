#pragma once
/// @file
/// The functions of group::Job.

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/event_loop.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/group/job.hpp"
#include "dtrain/launch/participation.hpp"

namespace DTRAIN_NAMESPACE::group {

namespace detail {

inline async::Task<void> report_later(async::EventLoop& loop, std::chrono::milliseconds grace,
                                      std::shared_ptr<FailureLatch> latch, Cause cause) {
  co_await loop.sleep_for(grace);
  latch->report(cause);
}

}  // namespace detail

DTRAIN_DEFINED Job::Job(const launch::Worker& worker, std::string terms, std::shared_ptr<void> base)
    : base_(std::move(base)),
      timeout(worker.timeout),
      participant(launch::participant_options(worker, std::move(terms))),
      tasks(participant.control_thread(), participant.failure(), participant.membership().rank),
      streams(std::make_shared<stream::host::StreamSet>()) {}

DTRAIN_DEFINED Job::~Job() {
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

DTRAIN_DEFINED void Job::require_may_block() const {
  if (!process_.is_current()) {
    throw Error(Errc::invalid_argument,
                "a process that rank " + std::to_string(participant.membership().rank) +
                    " forked called its process group; the group is of the process that joined the job; let the child "
                    "compute without it, and end with _exit or exec");
  }
  if (tasks.on_loop_thread()) {
    throw Error(Errc::invalid_argument,
                "a collective or a call that blocks was made in a coroutine on the control thread, where it would "
                "wait for itself; make it on a thread of the program");
  }
}

DTRAIN_DEFINED void Job::report_exception(const std::string& text, std::optional<int> whose) noexcept {
  if (!process_.is_current()) {
    return;
  }
  try {
    participant.failure()->report(exception_cause(text, whose));
    if (!tasks.on_loop_thread()) {
      participant.failure()->block_until_failed(Deadline::after(std::chrono::seconds(2)));
    }
  } catch (...) {
    // The others see the closed connection.
  }
}

DTRAIN_DEFINED void Job::report_after(std::chrono::milliseconds grace, std::string text) noexcept {
  if (!process_.is_current()) {
    return;
  }
  try {
    async::EventLoop& loop = participant.control_thread().loop();
    loop.post([&loop, grace, latch = participant.failure(), cause = exception_cause(std::move(text))] {
      loop.spawn_detached(detail::report_later(loop, grace, latch, cause));
    });
  } catch (...) {
    // The others notice when this rank leaves without having taken part.
  }
}

DTRAIN_DEFINED void Job::leave_blocking() {
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

DTRAIN_DEFINED Cause Job::exception_cause(std::string text, std::optional<int> whose) const {
  const rendezvous::Membership& self = participant.membership();
  if (whose && *whose != self.rank) {
    return {CauseKind::exception, *whose, {}, std::move(text)};  // whose host the text may name
  }
  return {CauseKind::exception, self.rank, self.host, std::move(text)};
}

}  // namespace DTRAIN_NAMESPACE::group
