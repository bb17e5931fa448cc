#pragma once
/// @file
/// Which of the devices that a process sees it computes on.

#include <optional>
#include <string>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// What the choice depends on. Ranks are among those of this node; what the launcher did not say is not there.
struct DeviceFacts {
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  int visible = 0;       ///< devices that this process sees
  bool sharing = false;  ///< whether ranks were asked to share devices
};

/// An index among the visible devices, or why there is none.
struct DeviceChoice {
  int index = -1;
  std::string refusal;  ///< a sentence; empty where there is a choice
};

/// One visible device is taken: a launcher that shows each rank its own has chosen already. Else rank l of the node
/// takes the l-th; fewer than ranks are dealt out in turn where they are to be shared, and refused otherwise.
inline DeviceChoice choose_device(const DeviceFacts& facts) {
  const std::string seen = std::to_string(facts.visible);
  if (facts.visible < 1) {
    return {-1,
            "no CUDA device is visible to this process; look at CUDA_VISIBLE_DEVICES and nvidia-smi, or use a "
            "backend for host memory"};
  }
  if (facts.visible == 1) {
    return {0, {}};
  }
  if (!facts.local_rank) {
    return {-1, seen +
                    " devices are visible and the launcher did not say which of this node's ranks this is; set "
                    "LOCAL_RANK, or show each rank its own device by CUDA_VISIBLE_DEVICES"};
  }
  const int rank = *facts.local_rank;
  const int ranks = facts.local_world_size.value_or(rank + 1);
  if (ranks <= facts.visible && rank < facts.visible) {
    return {rank, {}};
  }
  if (facts.sharing) {
    return {rank % facts.visible, {}};
  }
  return {-1, "rank " + std::to_string(rank) + " of the " + std::to_string(ranks) + " on this node finds " + seen +
                  " devices; start at most one rank for each device, or set DTRAIN_SHARE_DEVICES=1 to share them"};
}

}  // namespace DTRAIN_NAMESPACE::identity
