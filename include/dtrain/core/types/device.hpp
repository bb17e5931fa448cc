#pragma once
/// @file
/// Device: kind and index of the memory and of the streams.

#include <cstdint>
#include <string>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// Whose memory: the host's, or a GPU's.
enum class DeviceKind : std::uint8_t { host = 1, cuda };

/// One of them. The host is always index 0.
struct Device {
  DeviceKind kind = DeviceKind::host;
  std::int32_t index = 0;  ///< among the devices that this process sees, as CUDA counts them

  friend constexpr bool operator==(const Device&, const Device&) = default;
};

/// "host", "cuda:1".
inline std::string to_string(Device device) {
  return device.kind == DeviceKind::host ? std::string("host") : "cuda:" + std::to_string(device.index);
}

}  // namespace DTRAIN_NAMESPACE
