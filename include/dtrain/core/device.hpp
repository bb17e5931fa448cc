#pragma once
/// @file
/// Where memory lives and streams run.

#include <cstdint>
#include <string>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

enum class DeviceKind : std::uint8_t { host = 1, cuda };

struct Device {
  DeviceKind kind = DeviceKind::host;
  std::int32_t index = 0;

  friend constexpr bool operator==(const Device&, const Device&) = default;
};

inline std::string to_string(Device device) {
  return device.kind == DeviceKind::host ? std::string("host") : "cuda:" + std::to_string(device.index);
}

}  // namespace DTRAIN_NAMESPACE
