#pragma once
/// @file
/// Known variables: the one list of environment variables of dtrain. Warnings about a DTRAIN_ variable that dtrain does
/// not read.

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/identity/variables.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Variables that a user may set.
inline constexpr std::array<std::string_view, 22> user_variables{
    "DTRAIN_CHECK_VALUES",     "DTRAIN_GRACE_SECONDS", "DTRAIN_HOST_ID",          "DTRAIN_INTERFACE",
    "DTRAIN_JOB_ID",           "DTRAIN_LAUNCHER",      "DTRAIN_LIVENESS_SECONDS", "DTRAIN_LOCAL_RANK",
    "DTRAIN_LOCAL_WORLD_SIZE", "DTRAIN_LOG",           "DTRAIN_MASTER_ADDR",      "DTRAIN_MASTER_PORT",
    "DTRAIN_NODE_CORES",       "DTRAIN_NODE_COUNT",    "DTRAIN_NODE_RANK",        "DTRAIN_RANK",
    "DTRAIN_SECRET",           "DTRAIN_SECRET_FILE",   "DTRAIN_SHARE_DEVICES",    "DTRAIN_STRAGGLER_FACTOR",
    "DTRAIN_TIMEOUT_SECONDS",  "DTRAIN_WORLD_SIZE",
};

/// Variables that a launcher of dtrain sets for its workers.
inline constexpr std::array<std::string_view, 6> worker_variables{
    "DTRAIN_ATTEMPT",
    "DTRAIN_LAUNCHER_PROCESS",
    "DTRAIN_REPORT_DESCRIPTOR",
    "DTRAIN_STDERR_IS_TERMINAL",
    "DTRAIN_STDOUT_IS_TERMINAL",
    "DTRAIN_WRAPPED",
};

/// Variables of dtrain's own build, tests and benches, which a shell that built dtrain may still export.
inline constexpr std::array<std::string_view, 18> development_variables{
    "DTRAIN_ALL_EXAMPLES", "DTRAIN_CARRY_NCCL",         "DTRAIN_CUDA_HEADERS",       "DTRAIN_EMULATE_CUDA",
    "DTRAIN_FUZZERS",      "DTRAIN_GLOO_HEADERS",       "DTRAIN_GLOO_INCLUDE_DIR",   "DTRAIN_GLOO_LIBRARY",
    "DTRAIN_INSTALL",      "DTRAIN_JOIN_SOURCES",       "DTRAIN_NCCL_HEADERS",       "DTRAIN_NCCL_INCLUDE_DIR",
    "DTRAIN_NCCL_LIBRARY", "DTRAIN_PEER_PYTHON",        "DTRAIN_PRECOMPILE_HEADERS", "DTRAIN_TESTS_WITHOUT",
    "DTRAIN_TORCH_PREFIX", "DTRAIN_WARNINGS_AS_ERRORS",
};

/// Beginnings of names that dtrain leaves to others: programs, its own tests, and the options of its build.
inline constexpr std::array<std::string_view, 5> free_prefixes{
    "DTRAIN_USER_", "DTRAIN_TEST_", "DTRAIN_EMULATED_", "DTRAIN_BUILD_", "DTRAIN_WITH_",
};

/// A sentence for each variable whose name begins with DTRAIN_ and is not known, with the name that may be meant; the
/// first eight, and how many more there are. An empty variable counts as unset. Pure.
std::vector<std::string> unknown_variables(const identity::Environment& environment);

/// Logs unknown_variables() as warnings.
void warn_of_unknown_variables(const identity::Environment& environment);

/// Returns `read()`. If it throws, warns of unknown variables first: a misspelt one may be the reason.
template <class Read>
auto reading_variables(const identity::Environment& environment, Read read) -> decltype(read()) {
  try {
    return read();
  } catch (...) {
    warn_of_unknown_variables(environment);
    throw;
  }
}

}  // namespace DTRAIN_NAMESPACE::launch

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <cstddef>

#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/nearest_name.hpp"
#include "dtrain/core/text/sanitize.hpp"

namespace DTRAIN_NAMESPACE::launch {

namespace detail {

inline constexpr std::string_view variable_prefix = "DTRAIN_";

inline bool is_known_variable(std::string_view name) {
  const auto is_name = [&](std::string_view known) { return name == known; };
  return std::any_of(user_variables.begin(), user_variables.end(), is_name) ||
         std::any_of(worker_variables.begin(), worker_variables.end(), is_name) ||
         std::any_of(development_variables.begin(), development_variables.end(), is_name) ||
         std::any_of(free_prefixes.begin(), free_prefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

/// Whether Kubernetes sets the variable in a pod for a service whose name begins with "dtrain", as DTRAIN_SERVICE_HOST,
/// DTRAIN_PORT and DTRAIN_PORT_80_TCP. Source: "Environment variables" of Kubernetes' page on services.
inline bool is_of_kubernetes(std::string_view name, std::string_view value) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  return has("_SERVICE_HOST") || has("_SERVICE_PORT") || has("_PORT_") ||
         (name.ends_with("_PORT") && value.find("://") != std::string_view::npos);
}

/// Whether `longer` is `shorter` and further words: DTRAIN_LOG_LEVEL and DTRAIN_LOG.
inline bool continues(std::string_view longer, std::string_view shorter) {
  return longer.size() > shorter.size() && longer.starts_with(shorter) && longer[shorter.size()] == '_';
}

/// The user's variable that a name may mean: the nearest one, else one with more or fewer words; empty if none is near.
inline std::string_view intended_variable(std::string_view name) {
  const std::string_view nearest = nearest_name(name, user_variables, variable_prefix.size());
  const auto related = std::find_if(user_variables.begin(), user_variables.end(), [&](std::string_view known) {
    return continues(known, name) || continues(name, known);
  });
  return !nearest.empty() || related == user_variables.end() ? nearest : *related;
}

}  // namespace detail

DTRAIN_DEFINED std::vector<std::string> unknown_variables(const identity::Environment& environment) {
  constexpr std::size_t most = 8;
  constexpr std::size_t longest = 64;
  std::vector<std::string> sentences;
  std::size_t further = 0;
  for (auto at = environment.lower_bound(detail::variable_prefix); at != environment.end(); ++at) {
    const std::string_view name = at->first;
    if (!name.starts_with(detail::variable_prefix)) {
      break;
    }
    if (at->second.empty() || detail::is_known_variable(name) || detail::is_of_kubernetes(name, at->second)) {
      continue;
    }
    if (sentences.size() == most) {
      ++further;
      continue;
    }
    const std::string_view intended = detail::intended_variable(name);
    sentences.push_back(format_text(
        "{} is not a variable of dtrain; {}{}",
        {excerpt(name, longest),
         intended.empty() ? "unset it, or begin the names of your own variables with DTRAIN_USER_" : "did you mean ",
         intended.empty() ? "" : format_text("{}?", {intended})}));
  }
  if (further != 0) {
    sentences.push_back(format_text("{} further variables that begin with DTRAIN_ are none of dtrain", {further}));
  }
  return sentences;
}

DTRAIN_DEFINED void warn_of_unknown_variables(const identity::Environment& environment) {
  for (const std::string& sentence : unknown_variables(environment)) {
    log(LogLevel::warning, sentence);
  }
}

}  // namespace DTRAIN_NAMESPACE::launch

#endif  // DTRAIN_DEFINITIONS
