#pragma once
/// @file
/// Progress of a host stream: whether a helper thread runs it while the program computes. Driver decides by DdpOptions.
/// available_cores(): cores that the calling thread may use, for Driver and PerNode; cores_of_all_ranks(): for
/// backend/shared_memory/channel.hpp.

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

/// Number of cores that the calling thread may use by its affinity, at most the CPU quota of its control groups. If the
/// system cannot answer, the number of cores online. Reads some small files.
int available_cores();

/// Number of cores that the ranks of this host may use together. A launcher that binds ranks to cores states the number
/// in DTRAIN_NODE_CORES; else available_cores().
int cores_of_all_ranks();

}  // namespace DTRAIN_NAMESPACE::stream::host

namespace DTRAIN_NAMESPACE {
using stream::host::Progress;
}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "dtrain/core/process/control_groups.hpp"
#include "dtrain/core/process/cpu_affinity.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

DTRAIN_DEFINED Progress progress_from(std::string_view text) {
  if (text == "automatic") return Progress::automatic;
  if (text == "thread") return Progress::thread;
  if (text == "caller") return Progress::caller;
  throw_error(Errc::usage, "progress \"{}\" is not known; possible are automatic, thread and caller",
              {text.substr(0, 64)});
}

DTRAIN_DEFINED int available_cores() {
  CpuSet allowed;
  long cores = 0;
  if (::sched_getaffinity(0, sizeof(allowed.words), allowed.words) == 0) {
    cores = CPU_COUNT_S(sizeof(allowed.words), allowed.words);
  } else {
    cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  }
  const int most = std::max(1, static_cast<int>(cores));
  return std::min(most, cpu_quota().value_or(most));
}

DTRAIN_DEFINED int cores_of_all_ranks() {
  const char* const given = std::getenv("DTRAIN_NODE_CORES");
  int cores = 0;
  if (given != nullptr) {
    const char* const end = given + std::strlen(given);
    const auto [read, error] = std::from_chars(given, end, cores);
    cores = read == end && error == std::errc{} ? cores : 0;
  }
  return std::max(cores, available_cores());
}

}  // namespace DTRAIN_NAMESPACE::stream::host

#endif  // DTRAIN_DEFINITIONS
