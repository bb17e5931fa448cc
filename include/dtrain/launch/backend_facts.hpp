#pragma once
/// @file
/// BackendFacts: what a launcher knows of a policy's backend before it starts workers.

#include <string_view>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Counts the devices of the kind that a policy's backend computes on; null if that is the host.
using VisibleDevices = int (*)();

/// Properties of a policy's backend that a launcher uses before it starts workers.
struct BackendFacts {
  std::string_view name{};  ///< for messages
  VisibleDevices visible_devices = nullptr;
  int most_ranks = 0;       ///< most ranks on one host; 0: no limit
  bool is_elastic = false;  ///< the program's body takes an Elastic, not a group
};

}  // namespace DTRAIN_NAMESPACE::launch
