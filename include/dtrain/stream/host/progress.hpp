#pragma once
/// @file
/// Progress: whether a helper thread drives communication while the program computes.

#include <string_view>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// `thread` overlaps communication with computation; `caller` runs it in the thread that waits for it. Waking a thread
/// for little work, or without a free core, costs more than it hides: `automatic` is `thread` only with a free core.
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

/// Resolves `automatic` for this many ranks on the host, and cores that a rank may use: `thread` or `caller`.
constexpr Progress decide(Progress wanted, int cores, int local_world_size) noexcept {
  if (wanted != Progress::automatic) {
    return wanted;
  }
  return cores > local_world_size ? Progress::thread : Progress::caller;
}

/// Number of cores that the calling thread may use; if the system cannot answer, the number of cores online.
int cores_by_affinity() noexcept;

}  // namespace DTRAIN_NAMESPACE::stream::host

#if DTRAIN_DEFINITIONS

#include <sched.h>
#include <unistd.h>

#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

DTRAIN_DEFINED Progress progress_from(std::string_view text) {
  if (text == "automatic") return Progress::automatic;
  if (text == "thread") return Progress::thread;
  if (text == "caller") return Progress::caller;
  throw_error(Errc::usage, "progress \"{}\" is not known; possible are automatic, thread and caller",
              {text.substr(0, 64)});
}

DTRAIN_DEFINED int cores_by_affinity() noexcept {
  cpu_set_t allowed[8];  // 8192 cores, the most that Linux can be built for; it refuses a set smaller than its own
  if (::sched_getaffinity(0, sizeof(allowed), allowed) != 0) {
    const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? static_cast<int>(online) : 1;
  }
  const int cores = CPU_COUNT_S(sizeof(allowed), allowed);
  return cores > 0 ? cores : 1;
}

}  // namespace DTRAIN_NAMESPACE::stream::host

#endif  // DTRAIN_DEFINITIONS
