#pragma once
/// @file
/// The log line for a long wait, with its reason.

#include <chrono>
#include <exception>
#include <string>
#include <utility>

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/core/log.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Warns once where it has lived for a while. Lifetime: the loop outlives it; it does not move. Threads: the loop's.
class SlowNotice {
 public:
  /// @param doing what waits: "joining the job at a:1 as rank 2"
  /// @param why what it waits for, until note() says better
  SlowNotice(async::EventLoop& loop, std::string doing, std::string why,
             std::chrono::milliseconds after = std::chrono::seconds(10))
      : doing_(std::move(doing)),
        why_(std::move(why)),
        saying_(loop.spawn(say(loop, after), [](const std::exception_ptr&) {})) {}
  SlowNotice(const SlowNotice&) = delete;
  SlowNotice& operator=(const SlowNotice&) = delete;

  /// What is known by now.
  void note(std::string why) { why_ = std::move(why); }

 private:
  async::Task<void> say(async::EventLoop& loop, std::chrono::milliseconds after) {
    co_await loop.sleep_for(after);
    log(LogLevel::warning, doing_ + ": still waiting; " + why_);
  }

  std::string doing_;
  std::string why_;
  async::TaskHandle saying_;  ///< last: gone before what it uses
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
