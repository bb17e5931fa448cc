#pragma once
/// @file
/// Device: kind and index of the device of memory or of a stream.

#include <cstdint>
#include <string>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// The host, or a GPU with CUDA.
enum class DeviceKind : std::uint8_t { host = 1, cuda };

/// A device. The host is always index 0.
struct Device {
  DeviceKind kind = DeviceKind::host;
  std::int32_t index = 0;  ///< CUDA's number among the devices visible to this process

  friend constexpr bool operator==(const Device&, const Device&) = default;
};

/// "host", "cuda:1".
std::string to_string(Device device);

}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

namespace DTRAIN_NAMESPACE {

DTRAIN_DEFINED std::string to_string(Device device) {
  return device.kind == DeviceKind::host ? std::string("host") : "cuda:" + std::to_string(device.index);
}

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
