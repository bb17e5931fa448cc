// A policy whose third type is no topology.
// expect: dtrain: the third type of Policy must be a topology, such as topology::Flat
#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/launch/per_process.hpp"
#include "dtrain/policy.hpp"
#include "dtrain/topology/topology.hpp"

#ifdef DTRAIN_COMPILE_FAIL
using Topology = dtrain::launch::PerProcess;
#else
using Topology = dtrain::topology::Flat;
#endif

dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory, Topology> policy;
