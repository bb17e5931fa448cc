#pragma once
/// @file
/// RankActivity of a RankContext: what the rank is doing: phase of a step, ready gradients, channels, and the thread
/// that drives steps.

#include <sys/types.h>

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
#include "dtrain/core/process/thread_activity.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::group {

/// The program's threads store; the control thread reads once a second. Threads: status() in one at a time, the rest in
/// any.
class RankActivity {
 public:
  /// Interface of a wrapper's steps.
  class Steps {
   public:
    /// Sets step, ready, parameters and missing, of a step that may be running in other threads.
    virtual void describe(rendezvous::RankStatus& status) const = 0;

   protected:
    ~Steps() = default;
  };

  RankActivity() = default;
  RankActivity(const RankActivity&) = delete;
  RankActivity& operator=(const RankActivity&) = delete;

  /// Called by the thread that drives steps. Two stores.
  void enter(rendezvous::RankPhase phase) noexcept {
    thread_.store(current_thread(), std::memory_order_relaxed);
    phase_.store(phase, std::memory_order_relaxed);
  }

  /// Lifetime: `steps` is removed before it is destroyed.
  void add(const Steps& steps);
  void remove(const Steps& steps) noexcept;

  /// The activity of a new channel, which is listed while another object shares it.
  std::shared_ptr<backend::ChannelActivity> add_channel(std::string name, backend::DescribeOperation describe);

  /// @throws std::bad_alloc
  rendezvous::RankStatus status();

 private:
  std::atomic<rendezvous::RankPhase> phase_{rendezvous::RankPhase::outside};
  std::atomic<pid_t> thread_{current_thread()};
  std::mutex mutex_;
  std::vector<const Steps*> steps_;
  std::vector<std::shared_ptr<backend::ChannelActivity>> channels_;
  ThreadActivity thread_activity_;
  std::uint64_t last_ = 0;  ///< digest of the last status
  Deadline::Clock::time_point changed_ = Deadline::Clock::now();
};

}  // namespace DTRAIN_NAMESPACE::group

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

namespace DTRAIN_NAMESPACE::group {

DTRAIN_DEFINED void RankActivity::add(const Steps& steps) {
  const std::lock_guard lock(mutex_);
  steps_.push_back(&steps);
}

DTRAIN_DEFINED void RankActivity::remove(const Steps& steps) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(steps_, &steps);
}

DTRAIN_DEFINED std::shared_ptr<backend::ChannelActivity> RankActivity::add_channel(
    std::string name, backend::DescribeOperation describe) {
  auto made = std::make_shared<backend::ChannelActivity>(std::move(name), std::move(describe));
  const std::lock_guard lock(mutex_);
  std::erase_if(channels_, [](const auto& each) { return each.use_count() == 1; });
  channels_.push_back(made);
  return made;
}

DTRAIN_DEFINED rendezvous::RankStatus RankActivity::status() {
  rendezvous::RankStatus status;
  status.phase = phase_.load(std::memory_order_relaxed);
  std::vector<std::shared_ptr<backend::ChannelActivity>> channels;
  {
    const std::lock_guard lock(mutex_);
    for (const Steps* each : steps_) {
      rendezvous::RankStatus other;
      each->describe(other);
      if (other.step < status.step) continue;  // the wrapper with the most steps is the model that is trained
      status.step = other.step;
      status.ready = other.ready;
      status.parameters = other.parameters;
      status.missing = std::move(other.missing);
    }
    channels = channels_;
  }
  if (status.phase == rendezvous::RankPhase::outside) status.ready = status.parameters = 0;
  for (auto each = channels.rbegin(); each != channels.rend(); ++each)
    status.channels.push_back((*each)->status());
  std::stable_partition(status.channels.begin(), status.channels.end(),
                        [](const rendezvous::RankStatus::Channel& each) { return each.is_in_operation; });
  if (status.channels.size() > status.most_channels) status.channels.resize(status.most_channels);

  std::uint64_t digest = status.step;
  const auto add = [&digest](std::uint64_t value) { digest = (digest ^ value) * 0x100000001b3U; };
  add(static_cast<std::uint64_t>(status.phase));
  add(status.ready);
  for (const rendezvous::RankStatus::Channel& each : status.channels) {
    add(2 * each.sequence + (each.is_in_operation ? 1 : 0));
    add(std::hash<std::string>()(each.call));
  }
  const auto now = Deadline::Clock::now();
  if (std::exchange(last_, digest) != digest) changed_ = now;
  const auto unchanged = std::chrono::duration_cast<std::chrono::milliseconds>(now - changed_);
  status.unchanged_ms = static_cast<std::uint64_t>(unchanged.count());
  status.thread = thread_activity_.look(thread_.load(std::memory_order_relaxed));
  return status;
}

}  // namespace DTRAIN_NAMESPACE::group

#endif  // DTRAIN_DEFINITIONS
