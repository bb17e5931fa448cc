#pragma once
/// @file
/// start_thread(): starts a thread of the library, with signals blocked and an error that names the thread.

#include <functional>
#include <string_view>

#include "dtrain/async/joining_thread.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Runs `main()` on a new thread with all signals blocked, so that the program's handlers run in the program's threads.
/// @param what names the thread in the error: "a channel's thread"
/// @throws Error (posix) if the system cannot start a thread
JoiningThread start_thread(std::string_view what, std::function<void()> main);

}  // namespace DTRAIN_NAMESPACE::async

#if DTRAIN_DEFINITIONS

#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

#include "dtrain/async/blocked_signals.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/process_limits.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::async {

DTRAIN_DEFINED JoiningThread start_thread(std::string_view what, std::function<void()> main) {
  const BlockedSignals blocked;
  try {
    return JoiningThread(std::thread(std::move(main)));
  } catch (const std::system_error& failure) {
    throw Error(failure.code(), format_text("starting {}: {}{}", {what, failure.what(), limit_hint(ENOMEM)}));
  }
}

}  // namespace DTRAIN_NAMESPACE::async

#endif  // DTRAIN_DEFINITIONS
