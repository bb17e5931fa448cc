#pragma once
/// @file
/// ReducerParts: what a reducer may be given of a model and its group.

#include <memory>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/address_check.hpp"
#include "dtrain/ddp/profile/running_bucket.hpp"
#include "dtrain/ddp/reduction/bucket_rebuild.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Parts of a model and its group that a reducer uses; each may be missing.
struct ReducerParts {
  std::vector<TensorView> buffers{};         ///< broadcast from rank 0 in each step
  std::shared_ptr<RunningBucket> running{};  ///< updated with each bucket
  BucketRebuild rebuild{};
  AddressCheck::Read read_parameters{};
  bool scales_averages = false;  ///< see scaled_averages.hpp; the same on all ranks
};

}  // namespace DTRAIN_NAMESPACE::ddp
