#pragma once
/// @file
/// Instantiations of the wrapper's and group's classes for backend::SharedMemory, which separate compilation compiles
/// once.

#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/backend/store_ref.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/ddp/broadcast/packed_broadcast.hpp"
#include "dtrain/ddp/reduction/bucket_reduction.hpp"
#include "dtrain/ddp/reduction/gradient_arena.hpp"
#include "dtrain/ddp/reduction/reducer.hpp"
#include "dtrain/ddp/setup/driver.hpp"
#include "dtrain/group/group_internals.hpp"
#include "dtrain/group/group_state.hpp"
#include "dtrain/rendezvous/client/store.hpp"

#if DTRAIN_SEPARATE_COMPILATION
#if DTRAIN_DEFINITIONS
#define DTRAIN_INSTANTIATE template
#else
#define DTRAIN_INSTANTIATE extern template
#endif

namespace DTRAIN_NAMESPACE {

DTRAIN_INSTANTIATE backend::StoreRef::StoreRef(rendezvous::Store);
DTRAIN_INSTANTIATE class group::GroupState<backend::SharedMemory>;
DTRAIN_INSTANTIATE class ddp::BufferBroadcast<backend::SharedMemory::Communicator>;
DTRAIN_INSTANTIATE class ddp::GradientArena<backend::SharedMemory::Communicator>;
DTRAIN_INSTANTIATE class ddp::BucketReduction<backend::SharedMemory::Communicator>;
DTRAIN_INSTANTIATE class ddp::Reducer<backend::SharedMemory::Communicator>;
DTRAIN_INSTANTIATE struct ddp::Driver<backend::SharedMemory, group::GroupState<backend::SharedMemory>>;
DTRAIN_INSTANTIATE void ddp::broadcast_values(backend::SharedMemory::Communicator&,
                                              backend::SharedMemory::Communicator::Stream, ddp::PackedBroadcast&,
                                              const ddp::FailureContext&);

}  // namespace DTRAIN_NAMESPACE

#undef DTRAIN_INSTANTIATE
#endif  // DTRAIN_SEPARATE_COMPILATION
