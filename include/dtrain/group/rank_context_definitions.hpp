#pragma once
/// @file
/// Member function definitions of group::RankContext.

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/async/loop_handle.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/number_text.hpp"
#include "dtrain/group/rank_context.hpp"
#include "dtrain/rendezvous/membership/job_settings.hpp"

namespace DTRAIN_NAMESPACE::group {

namespace detail {

inline async::Task<void> report_later(async::EventLoop& loop, std::chrono::milliseconds grace,
                                      std::shared_ptr<FailureLatch> latch, Cause cause) {
  co_await loop.sleep_for(grace);
  latch->report(cause);
}

inline async::Task<void> set_all(rendezvous::Store store, std::shared_ptr<const StoreEntries> entries) {
  for (const auto& [key, value] : *entries) {
    co_await store.set(key, value);
  }
}

}  // namespace detail

DTRAIN_DEFINED RankContext::RankContext(const rendezvous::ControlPlaneOptions& options, std::shared_ptr<void> base)
    : base_(std::move(base)),
      timeout(options.timeout),
      control_plane(options),
      tasks(control_plane.control_thread(), control_plane.failure(), control_plane.membership().rank),
      streams(std::make_shared<stream::host::StreamRegistry>()),
      gradient_bindings(std::make_shared<GradientBindingRegistry>()),
      pending_weights(std::make_shared<PendingWeights>()) {}

DTRAIN_DEFINED RankContext::~RankContext() {
  if (left_) {
    return;
  }
  try {
    if (std::uncaught_exceptions() > exceptions_at_start_) {
      report_exception("an exception ended the process group");
    } else if (!control_plane.failure()->failed()) {
      leave_blocking();
    }
  } catch (...) {
    // The others see the closed connection.
  }
}

DTRAIN_DEFINED void RankContext::keep_alive_until_leave(std::shared_ptr<void> work) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    kept_.push_back(std::move(work));
  } catch (...) {
    // Then `work` is destroyed now; the other ranks may get a less precise cause.
  }
}

DTRAIN_DEFINED void RankContext::add(Closable& channel) {
  const std::lock_guard lock(mutex_);
  channels_.push_back(&channel);
}

DTRAIN_DEFINED void RankContext::remove(Closable& channel) noexcept {
  const std::lock_guard lock(mutex_);
  channels_.erase(std::remove(channels_.begin(), channels_.end(), &channel), channels_.end());
}

DTRAIN_DEFINED void RankContext::require_may_block() const {
  if (!process_.is_current()) {
    throw_error(Errc::invalid_argument,
                "a process that rank {} forked called its process group; the group is of the process that joined the "
                "job; let the child compute without it, and end with _exit or exec",
                {control_plane.membership().rank});
  }
  if (tasks.on_loop_thread()) {
    throw_error(Errc::invalid_argument,
                "a collective or a call that blocks was made in a coroutine on the control loop, where it would wait "
                "for itself; make it on a thread of the program: enqueue the collective there, with a stream, and "
                "co_await its Work in the coroutine");
  }
}

DTRAIN_DEFINED void RankContext::report_exception(const std::string& text, std::optional<int> failed_rank) noexcept {
  if (!process_.is_current()) {
    return;
  }
  try {
    control_plane.failure()->report(exception_cause(text, failed_rank));
    if (!tasks.on_loop_thread()) {
      control_plane.failure()->block_until_failed(Deadline::after(std::chrono::seconds(2)));
    }
  } catch (...) {
    // The others see the closed connection.
  }
}

DTRAIN_DEFINED void RankContext::report_after(std::chrono::milliseconds grace, std::string text) noexcept {
  if (!process_.is_current()) {
    return;
  }
  try {
    async::EventLoop& loop = control_plane.control_thread().loop();
    loop.post([&loop, grace, latch = control_plane.failure(), cause = exception_cause(std::move(text))] {
      loop.spawn_detached(detail::report_later(loop, grace, latch, cause));
    });
  } catch (...) {
    // The other ranks notice when this rank leaves without having taken part.
  }
}

DTRAIN_DEFINED WaitUntilSet RankContext::set_in_background(const rendezvous::Store& store, StoreEntries entries) {
  const auto shared = std::make_shared<const StoreEntries>(std::move(entries));
  auto make = [store, shared] { return detail::set_all(store, shared); };
  const auto setting = std::make_shared<async::BackgroundTask<void>>(tasks.start(std::move(make)));
  return [setting](Deadline deadline) { setting->wait(deadline); };
}

DTRAIN_DEFINED void RankContext::leave_blocking() {
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
  kept.clear();  // peers that wait in one of these channels are notified as well
  control_plane.leave_blocking(Deadline::after(timeout));
}

DTRAIN_DEFINED Cause RankContext::exception_cause(std::string text, std::optional<int> failed_rank) const {
  const rendezvous::Membership& self = control_plane.membership();
  if (failed_rank && *failed_rank != self.rank) {
    return {CauseKind::exception, *failed_rank, {}, std::move(text)};  // the text may name its host
  }
  return {CauseKind::exception, self.rank, self.host, std::move(text)};
}

DTRAIN_DEFINED std::shared_ptr<RankContext> join_job_blocking(const rendezvous::ControlPlaneOptions& worker,
                                                              PreJoin pre_join, const RequiredSettings& required) {
  rendezvous::ControlPlaneOptions self = worker;
  std::shared_ptr<void> base;
  if (pre_join != nullptr) {
    base = pre_join(self.identity, self.secret, Deadline::after(self.timeout));
  }
  rendezvous::JobSettings settings;
  settings.add("launcher", required.launcher).add("backend", required.backend).add("topology", required.topology);
  settings.add("DTRAIN_TIMEOUT_SECONDS", number_text(std::chrono::duration<double>(self.timeout).count()));
  settings.add("GroupOptions::accumulate", name(required.accumulate));
  settings.add("GroupOptions::algorithms", required.algorithms);
  self.settings = settings.text();
  return {new RankContext(self, std::move(base)), rendezvous::OffThreadDeleter()};
}

}  // namespace DTRAIN_NAMESPACE::group
