#pragma once
/// @file
/// RankActivity of a RankContext: what the rank is doing: phase of a step, ready gradients, channels, and the thread
/// that drives steps.

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dtrain/backend/channel_activity.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/process/thread_activity.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::group {

/// The program's threads store; the control thread reads once a second. Threads: status() in one at a time, the rest in
/// any.
class RankActivity : public std::enable_shared_from_this<RankActivity> {
 public:
  /// Interface of a wrapper's steps.
  class Steps {
   public:
    /// Sets step, ready, parameters and missing, of a step that may be running in other threads.
    virtual void describe(rendezvous::RankStatus& status) const = 0;
    /// The digest of the weights that was taken last.
    virtual rendezvous::ValuesDigest values() const = 0;
    /// The last whole window of computing times. Called by one thread at a time. @throws std::bad_alloc
    virtual rendezvous::ComputingWindow computing(Deadline::Clock::time_point now) = 0;

   protected:
    ~Steps() = default;
  };

  RankActivity() = default;
  RankActivity(const RankActivity&) = delete;
  RankActivity& operator=(const RankActivity&) = delete;

  /// The number of steps that wrappers have begun, equal on ranks whose wrappers make steps in one order.
  std::uint64_t steps() const noexcept { return begun_.load(std::memory_order_relaxed); }
  void count_step() noexcept { begun_.store(steps() + 1, std::memory_order_relaxed); }

  /// Called by the thread that drives steps. Three stores.
  /// @param steps whose step begins or ends; null: as before
  void enter(rendezvous::RankPhase phase, const Steps* steps = nullptr) noexcept {
    if (steps != nullptr) latest_.store(steps, std::memory_order_relaxed);
    thread_.store(current_thread(), std::memory_order_relaxed);
    phase_.store(phase, std::memory_order_relaxed);
  }

  /// The next statuses have this finding, of which it sets the number; but not before the one before has been sent,
  /// because later ones may be its consequences. @throws std::bad_alloc
  void report(rendezvous::RankStatus::Finding finding);

  /// Lifetime: `steps` is removed before it is destroyed.
  void add(Steps& steps);
  void remove(const Steps& steps) noexcept;

  /// The activity of a new channel, which is listed while another object shares it. @pre a shared_ptr owns this object
  std::shared_ptr<backend::ChannelActivity> add_channel(std::string name, backend::DescribeOperation describe);

  /// @throws std::bad_alloc
  rendezvous::RankStatus status();

 private:
  struct ListedChannel {
    std::shared_ptr<backend::ChannelActivity> activity;
    rendezvous::RankStatus::Channel last{};  ///< status that was sent last
    Deadline::Clock::time_point changed{};   ///< the time of the status before which it was used last
  };

  std::vector<rendezvous::RankStatus::Channel> channels();

  std::atomic<rendezvous::RankPhase> phase_{rendezvous::RankPhase::outside};
  std::atomic<std::uint64_t> begun_{0};
  std::atomic<pid_t> thread_{current_thread()};
  std::atomic<const Steps*> latest_{nullptr};  ///< compared with those of steps_ only
  std::mutex mutex_;
  std::vector<Steps*> steps_;
  std::vector<ListedChannel> channels_;
  rendezvous::RankStatus::Finding finding_;
  std::uint32_t sent_finding_ = 0;
  std::uint64_t last_step_ = 0;  ///< the most steps of a wrapper that has ended
  ThreadActivity thread_activity_;
  std::uint64_t last_ = 0;  ///< digest of the last status
  Deadline::Clock::time_point changed_ = Deadline::Clock::now();
  std::uint64_t window_end_ = 0;  ///< last step of the last window
  std::uint32_t core_wait_ = 0;
  const OwningProcess process_;
};

}  // namespace DTRAIN_NAMESPACE::group

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "dtrain/core/text/sanitize.hpp"

namespace DTRAIN_NAMESPACE::group {

DTRAIN_DEFINED void RankActivity::add(Steps& steps) {
  const std::lock_guard lock(mutex_);
  steps_.push_back(&steps);
}

DTRAIN_DEFINED void RankActivity::report(rendezvous::RankStatus::Finding finding) {
  finding.text.resize(truncate_utf8(finding.text, rendezvous::RankStatus::max_finding_bytes).size());
  const std::lock_guard lock(mutex_);
  if (finding_.number != sent_finding_) return;
  finding.number = finding_.number + 1;
  finding_ = std::move(finding);
}

DTRAIN_DEFINED void RankActivity::remove(const Steps& steps) noexcept {
  if (!process_.is_current()) return;  // the control thread may have had the mutex at the fork
  rendezvous::RankStatus last;
  try {
    steps.describe(last);
  } catch (...) {
    // There is no memory for the name of a parameter.
  }
  const std::lock_guard lock(mutex_);
  last_step_ = std::max(last_step_, last.step);
  std::erase(steps_, &steps);
}

DTRAIN_DEFINED std::shared_ptr<backend::ChannelActivity> RankActivity::add_channel(
    std::string name, backend::DescribeOperation describe) {
  backend::ChannelActivity::Split split = [weak = weak_from_this()](std::string other) {
    const std::shared_ptr<RankActivity> list = weak.lock();
    return list ? list->add_channel(std::move(other), {}) : nullptr;
  };
  auto made = std::make_shared<backend::ChannelActivity>(std::move(name), std::move(describe), std::move(split));
  const std::lock_guard lock(mutex_);
  std::erase_if(channels_, [](const ListedChannel& each) { return each.activity.use_count() == 1; });
  channels_.push_back({made, {}, Deadline::Clock::now()});
  return made;
}

/// At most most_channels: those in an operation first, then the ones used last.
DTRAIN_DEFINED std::vector<rendezvous::RankStatus::Channel> RankActivity::channels() {
  const auto now = Deadline::Clock::now();
  std::vector<std::pair<Deadline::Clock::time_point, rendezvous::RankStatus::Channel>> found;
  {
    const std::lock_guard lock(mutex_);
    for (auto each = channels_.rbegin(); each != channels_.rend(); ++each) {
      rendezvous::RankStatus::Channel channel = each->activity->status();
      const rendezvous::RankStatus::Channel last = std::exchange(each->last, channel);
      const bool is_same = last.called == channel.called && last.sequence == channel.sequence &&
                           last.call == channel.call && last.is_in_operation == channel.is_in_operation;
      if (!is_same) each->changed = now;
      const auto unchanged = std::chrono::duration_cast<std::chrono::milliseconds>(now - each->changed);
      channel.unchanged_ms = static_cast<std::uint64_t>(unchanged.count());
      found.emplace_back(each->changed, std::move(channel));
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return a.second.is_in_operation != b.second.is_in_operation ? a.second.is_in_operation : a.first > b.first;
  });
  std::vector<rendezvous::RankStatus::Channel> channels;
  for (auto& [changed, channel] : found) {
    if (channels.size() < rendezvous::RankStatus::most_channels) channels.push_back(std::move(channel));
  }
  return channels;
}

DTRAIN_DEFINED rendezvous::RankStatus RankActivity::status() {
  rendezvous::RankStatus status;
  status.phase = phase_.load(std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    status.step = last_step_;
    status.finding = finding_;
    sent_finding_ = finding_.number;
    if (!steps_.empty()) {
      const auto latest = std::find(steps_.begin(), steps_.end(), latest_.load(std::memory_order_relaxed));
      (latest == steps_.end() ? steps_.back() : *latest)->describe(status);
      for (Steps* const each : steps_) {  // the first one with the most ranks counts
        const rendezvous::ComputingWindow window = each->computing(Deadline::Clock::now());
        if (window.ranks <= status.computing.ranks) continue;
        status.computing = window;
        status.values = each->values();
      }
    }
  }
  if (status.phase == rendezvous::RankPhase::outside) {
    status.ready = status.parameters = 0;
    status.missing.clear();
  }
  status.channels = channels();

  std::uint64_t digest = status.step;
  const auto add = [&digest](std::uint64_t value) { digest = (digest ^ value) * 0x100000001b3U; };
  add(static_cast<std::uint64_t>(status.phase));
  add(status.ready);
  for (const rendezvous::RankStatus::Channel& each : status.channels) {
    add(2 * each.called + (each.is_in_operation ? 1 : 0));
    add(std::hash<std::string>()(each.call));
  }
  const auto now = Deadline::Clock::now();
  if (std::exchange(last_, digest) != digest) changed_ = now;
  const auto unchanged = std::chrono::duration_cast<std::chrono::milliseconds>(now - changed_);
  status.unchanged_ms = static_cast<std::uint64_t>(unchanged.count());
  status.process = static_cast<std::uint32_t>(::getpid());
  const pid_t thread = thread_.load(std::memory_order_relaxed);
  status.thread = thread_activity_.look(thread);
  if (std::exchange(window_end_, status.computing.last_step) != status.computing.last_step) {
    core_wait_ = thread_activity_.core_wait(thread);
  }
  status.computing.core_wait = core_wait_;
  return status;
}

}  // namespace DTRAIN_NAMESPACE::group

#endif  // DTRAIN_DEFINITIONS
