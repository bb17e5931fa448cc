#pragma once
/// @file
/// CUDA's hardware queues, asked for and checked before the device is used.

#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/variables.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

/// As many hardware queues as CUDA gives a process on a device. Its default is 8, which all streams share: what a
/// stream has enqueued behind a copy that waits for the host then holds up other streams of its queue. Source: CUDA C++
/// Programming Guide, "CUDA Environment Variables", CUDA_DEVICE_MAX_CONNECTIONS.
inline constexpr int hardware_queues = 32;
inline constexpr const char* queues_variable = "CUDA_DEVICE_MAX_CONNECTIONS";

/// A warning about fewer queues; empty if the variable is in order.
inline std::string warning_about(const identity::Environment& environment) {
  const std::optional<std::string_view> text = identity::Variables(environment).text(queues_variable);
  const std::optional<int> queues = text ? identity::parse_integer(*text) : std::nullopt;
  if (!queues || *queues >= hardware_queues) {
    return {};
  }
  return format_text(
      "{}={} lets streams share hardware queues, where a copy of backend::Staged that waits for the host holds up "
      "other streams, also those that the host or another rank waits for; then they end by the timeout; unset it "
      "(dtrain sets it to {}), or set it to {}",
      {queues_variable, *queues, hardware_queues, hardware_queues});
}

/// Sets CUDA_DEVICE_MAX_CONNECTIONS=32 unless the user has set it. CUDA reads it when it makes its context: a program
/// that has used CUDA before keeps what it had. Logs a warning about fewer queues.
/// Threads: no other thread reads the environment meanwhile. @throws Error if the variable cannot be set
inline void prepare_environment() {
  if (::setenv(queues_variable, "32", 0) != 0) {
    throw Error(std::error_code(errno, std::generic_category()), "setting CUDA_DEVICE_MAX_CONNECTIONS");
  }
  if (const std::string warning = warning_about(identity::snapshot_environment()); !warning.empty()) {
    log(LogLevel::warning, warning);
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
