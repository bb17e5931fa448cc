// Nodes inside which the backend of the policy can neither scatter nor gather.
// expect: dtrain: topology::Hierarchical needs a backend with reduce_scatter and all_gather on host streams
#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/launch/per_process.hpp"
#include "dtrain/policy.hpp"
#include "dtrain/topology/hierarchical.hpp"
#include "support/store_backend.hpp"

#ifdef DTRAIN_COMPILE_FAIL
using Topology = dtrain::topology::Hierarchical<>;
#else
using Topology = dtrain::topology::Hierarchical<dtrain::backend::SharedMemory>;
#endif

using Policy = dtrain::Policy<dtrain::launch::PerProcess, support::StoreBackend, Topology>;
static_assert(Policy::topology_fits_backend);
Policy::ChannelBackend::StreamOwner* stream = nullptr;
