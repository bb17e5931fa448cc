#pragma once
/// @file
/// Text of dtrain's version, which ranks and stores compare.

#include <string>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// "0.1.0"
inline std::string version_text() {
  return std::to_string(version.major) + "." + std::to_string(version.minor) + "." + std::to_string(version.patch);
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
