#pragma once
/// @file
/// StreamProgress of a RankContext: lets collectives that a program has enqueued on host streams run without a call
/// that waits.

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/async/loop_handle.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/rendezvous/control/task_runner.hpp"
#include "dtrain/stream/host/communication_stream.hpp"
#include "dtrain/stream/host/progress.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::group {

/// With a free core a stream gets a HelperThread. Without one, waking a thread for each collective would cost more than
/// it hides: then the control thread looks every 20 ms whether a stream has work that no thread runs, as long as one
/// has. Threads: any.
class StreamProgress {
 public:
  /// Lifetime: `tasks` outlives the object.
  StreamProgress(std::shared_ptr<stream::host::StreamRegistry> streams, const rendezvous::TaskRunner& tasks,
                 int local_world_size) noexcept
      : streams_(std::move(streams)), tasks_(tasks), local_world_size_(local_world_size) {}

  /// To be called after each enqueue of the program. Blocking: no.
  void attend(const stream::host::StreamRef& stream, stream::host::Progress wanted) noexcept;

 private:
  using Progress = stream::host::Progress;

  const std::shared_ptr<stream::host::StreamRegistry> streams_;
  const rendezvous::TaskRunner& tasks_;
  const int local_world_size_;
  std::atomic<Progress> decided_{Progress::automatic};  ///< automatic: not yet
  /// Whether watch_ runs.
  const std::shared_ptr<std::atomic<bool>> is_watching_ = std::make_shared<std::atomic<bool>>(false);
  std::mutex mutex_;
  std::optional<async::BackgroundTask<void>> watch_;
};

}  // namespace DTRAIN_NAMESPACE::group

#if DTRAIN_DEFINITIONS

#include "dtrain/core/process/core_count.hpp"

namespace DTRAIN_NAMESPACE::group {

namespace detail {

/// Starts threads for work of the program's streams that no thread runs, until there is none.
inline async::Task<void> run_streams(async::EventLoop& loop, std::shared_ptr<stream::host::StreamRegistry> streams,
                                     std::shared_ptr<std::atomic<bool>> is_watching) {
  do {
    co_await loop.sleep_for(std::chrono::milliseconds(20));
  } while (streams->run_unattended_of_program());
  is_watching->exchange(false);  // reads what attend() wrote, and so sees the work that it was called for
  streams->run_unattended_of_program();
}

}  // namespace detail

DTRAIN_DEFINED void StreamProgress::attend(const stream::host::StreamRef& stream, Progress wanted) noexcept {
  if (stream.has_helper()) return;
  if (decided_.load() == Progress::automatic) {
    decided_.store(stream::host::decide(wanted, cores_of_all_ranks(), available_cores(), local_world_size_));
  }
  if (decided_.load() == Progress::thread && streams_->start_helper(stream)) return;
  if (is_watching_->exchange(true)) return;
  try {
    const auto watch = [streams = streams_, is_watching = is_watching_](async::EventLoop& loop) {
      return detail::run_streams(loop, streams, is_watching);
    };
    async::BackgroundTask<void> started = tasks_.start(watch);
    const std::lock_guard lock(mutex_);
    static_cast<void>(watch_.emplace(std::move(started)));
  } catch (...) {
    is_watching_->store(false);  // the job has failed, or there is no memory: who waits for the work runs it
  }
}

}  // namespace DTRAIN_NAMESPACE::group

#endif  // DTRAIN_DEFINITIONS
