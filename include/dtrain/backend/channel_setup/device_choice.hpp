#pragma once
/// @file
/// choose_device(): the device of a GPU backend's rank, by local rank among the visible devices; pure.

#include <optional>
#include <string>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Inputs of the choice. Optional values are nullopt if the launcher did not set them.
struct DeviceFacts {
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  int visible = 0;       ///< number of devices that are visible to this process
  bool sharing = false;  ///< whether ranks may share devices (DTRAIN_SHARE_DEVICES)
};

/// An index among the visible devices, or the reason for having none.
struct DeviceChoice {
  int index = -1;
  std::string refusal;  ///< a sentence; empty if `index` is valid
};

/// Chooses a device:
///  - one visible device: that one, because the launcher has assigned one to each rank
///  - at least as many devices as local ranks: the device with the local rank as index
///  - fewer devices: local rank modulo number of devices if ranks may share them; otherwise none, with the reason
inline DeviceChoice choose_device(const DeviceFacts& facts) {
  if (facts.visible < 1) {
    return {-1,
            "no CUDA device is visible to this process; look at CUDA_VISIBLE_DEVICES and nvidia-smi, or use a "
            "backend for host memory"};
  }
  if (facts.visible == 1) {
    return {0, {}};
  }
  if (!facts.local_rank) {
    return {-1, format_text("{} devices are visible and the launcher did not say which of this node's ranks this is; "
                            "set LOCAL_RANK, or show each rank its own device by CUDA_VISIBLE_DEVICES",
                            {facts.visible})};
  }
  const int rank = *facts.local_rank;
  const int ranks = facts.local_world_size.value_or(rank + 1);
  if (ranks <= facts.visible && rank < facts.visible) {
    return {rank, {}};
  }
  if (facts.sharing) {
    return {rank % facts.visible, {}};
  }
  return {-1,
          format_text(
              "rank {} of the {} on this node finds {} devices; start at most one rank for each device, or "
              "set DTRAIN_SHARE_DEVICES=1 to share them (with NCCL also NCCL_MULTI_RANK_GPU_ENABLE=1, which needs NCCL "
              "2.30.3)",
              {rank, ranks, facts.visible})};
}

}  // namespace DTRAIN_NAMESPACE::backend
