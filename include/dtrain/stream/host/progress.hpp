#pragma once
/// @file
/// Progress: whether a helper thread runs a host stream while the program computes; decide() compares cores with ranks.

#include <string_view>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// `thread` overlaps communication with computation; `caller` runs it in the thread that waits for it. Waking a thread
/// for little work, or without a free core, costs more than it hides: `automatic` is `thread` only with a free core.
/// @ingroup streams
enum class Progress { automatic, thread, caller };

/// "automatic", "thread" or "caller". @throws Error (usage) for anything else.
Progress progress_from(std::string_view text);

constexpr const char* name(Progress progress) noexcept {
  switch (progress) {
    case Progress::automatic: return "automatic";
    case Progress::thread: return "thread";
    case Progress::caller: return "caller";
  }
  return "unknown progress";
}

/// Resolves `automatic` to `thread` or `caller` for this many ranks on the host.
/// @param cores cores that all ranks may use together
/// @param own_cores cores that this rank may use
constexpr Progress decide(Progress wanted, int cores, int own_cores, int local_world_size) noexcept {
  if (wanted != Progress::automatic) {
    return wanted;
  }
  return cores > local_world_size && own_cores > 1 ? Progress::thread : Progress::caller;
}

}  // namespace DTRAIN_NAMESPACE::stream::host

namespace DTRAIN_NAMESPACE {
using stream::host::Progress;
}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

DTRAIN_DEFINED Progress progress_from(std::string_view text) {
  if (text == "automatic") return Progress::automatic;
  if (text == "thread") return Progress::thread;
  if (text == "caller") return Progress::caller;
  throw_error(Errc::usage, "progress \"{}\" is not known; possible are automatic, thread and caller",
              {text.substr(0, 64)});
}

}  // namespace DTRAIN_NAMESPACE::stream::host

#endif  // DTRAIN_DEFINITIONS
