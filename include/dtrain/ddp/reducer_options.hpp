#pragma once
/// @file
/// Options of a reducer.

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/address_check.hpp"
#include "dtrain/ddp/profile/running_bucket.hpp"
#include "dtrain/ddp/reduction/bucket_rebuild.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The same on every rank, what is recorded excepted.
struct ReducerOptions {
  bool allow_unused_parameters = false;      ///< what is not announced takes part with zeros
  bool records_every_ready = false;          ///< and not only what happens once for each bucket
  bool device_times = false;                 ///< collectives that run on a device are timed there
  std::size_t records = 1024;                ///< kept of the latest steps
  std::vector<TensorView> buffers{};         ///< that every rank gets rank 0's of, in each step
  std::shared_ptr<RunningBucket> running{};  ///< is kept up to date
  BucketRebuild rebuild{};
  AddressCheck::Read read_parameters{};   ///< of the model, for AddressCheck
  std::optional<bool> check_addresses{};  ///< in every step, or not
};

}  // namespace DTRAIN_NAMESPACE::ddp
