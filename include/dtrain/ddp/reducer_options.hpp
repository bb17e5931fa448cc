#pragma once
/// @file
/// ReducerOptions: options of a reducer.

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/address_check.hpp"
#include "dtrain/ddp/profile/running_bucket.hpp"
#include "dtrain/ddp/reduction/bucket_rebuild.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Must be the same on every rank, except for `records`, `running` and the members that choose recording and checking.
struct ReducerOptions {
  bool allow_unused_parameters = false;      ///< parameters without ready() contribute zeros
  bool records_every_ready = false;          ///< in addition to the events of each bucket
  bool device_times = false;                 ///< measures collectives on a device
  std::size_t records = 1024;                ///< number of step records kept
  std::vector<TensorView> buffers{};         ///< broadcast from rank 0 in each step
  std::shared_ptr<RunningBucket> running{};  ///< updated with each bucket; may be null
  BucketRebuild rebuild{};
  AddressCheck::Read read_parameters{};   ///< for AddressCheck
  std::optional<bool> check_addresses{};  ///< see DdpOptions
};

}  // namespace DTRAIN_NAMESPACE::ddp
