// 16 bits on the wire of a backend whose streams run no work of the host.
// expect: dtrain: topology::FlatOver needs a backend on host streams
#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/launch/per_process.hpp"
#include "dtrain/policy.hpp"
#include "dtrain/topology/flat_over.hpp"
#include "support/backend_archetypes.hpp"

#ifdef DTRAIN_COMPILE_FAIL
using Backend = archetype::Backend<>;
#else
using Backend = dtrain::backend::SharedMemory;
#endif

using Policy = dtrain::Policy<dtrain::launch::PerProcess, Backend, dtrain::topology::FlatOver<dtrain::wire::Bf16>>;
static_assert(Policy::topology_fits_backend);
Policy::ChannelBackend::StreamOwner* stream = nullptr;
