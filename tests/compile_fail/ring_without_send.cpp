// A ring over a backend that carries no messages between two ranks.
// expect: dtrain: topology::Ring needs a backend with send and recv on host streams
#include "dtrain/launch/per_process.hpp"
#include "dtrain/policy.hpp"
#include "dtrain/topology/message_algorithms.hpp"
#include "support/store_backend.hpp"

#ifdef DTRAIN_COMPILE_FAIL
using Topology = dtrain::topology::Ring;
#else
using Topology = dtrain::topology::Flat;
#endif

using Policy = dtrain::Policy<dtrain::launch::PerProcess, support::StoreBackend, Topology>;
static_assert(Policy::topology_fits_backend);
Policy::ChannelBackend::StreamOwner* stream = nullptr;
