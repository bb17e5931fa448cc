#pragma once
/// @file
/// Bucket order broadcast: rank 0 publishes its ready order, by which every rank plans its buckets.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/backend/channel_setup/store_ref.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/reduction/bucket_rebuild.hpp"
#include "dtrain/group/rank_context.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Blocking: until rank 0 has published its order of `count` parameters. Each of the other `world_size` - 1 ranks reads
/// it once. @throws the job's first cause; Error (timeout)
std::vector<std::size_t> read_order_blocking(const backend::StoreRef& store, const std::string& prefix,
                                             std::size_t count, int world_size, const FailureContext& context,
                                             Deadline deadline);

/// Sets the callbacks of `rebuild`, so that all ranks of the group use rank 0's order. @param prefix used once
/// @param set_in_background as group::GroupInternals::set_in_background
/// @param start_pending as ProcessGroup::start_pending
void set_up_order_broadcast(BucketRebuild& rebuild, const backend::StoreRef& store,
                            const rendezvous::Membership& members, const std::string& prefix,
                            const FailureContext& context,
                            std::function<group::WaitUntilSet(group::StoreEntries)> set_in_background,
                            std::function<void()> start_pending);

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS
#include "dtrain/ddp/broadcast/bucket_order_broadcast_definitions.hpp"
#endif
