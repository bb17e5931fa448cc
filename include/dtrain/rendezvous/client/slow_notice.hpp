#pragma once
/// @file
/// SlowNotice: a log warning, with the reason, of a client's long wait for its job's store.

#include <chrono>
#include <exception>
#include <string>
#include <utility>

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Logs one warning after it has existed for `after`. Lifetime: the loop outlives it; not movable. Threads: the loop's.
class SlowNotice {
 public:
  /// @param doing the wait: "joining the job at a:1 as rank 2"
  /// @param why the reason for the wait, until note() replaces it
  SlowNotice(async::EventLoop& loop, std::string doing, std::string why,
             std::chrono::milliseconds after = std::chrono::seconds(10))
      : doing_(std::move(doing)),
        why_(std::move(why)),
        saying_(loop.spawn(say(loop, after), [](const std::exception_ptr&) {})) {}
  SlowNotice(const SlowNotice&) = delete;
  SlowNotice& operator=(const SlowNotice&) = delete;

  void note(std::string why) { why_ = std::move(why); }

 private:
  async::Task<void> say(async::EventLoop& loop, std::chrono::milliseconds after) {
    co_await loop.sleep_for(after);
    log(LogLevel::warning, format_text("{}: still waiting; {}", {doing_, why_}));
  }

  std::string doing_;
  std::string why_;
  async::TaskHandle saying_;  ///< last: destroyed before the members that it uses
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
