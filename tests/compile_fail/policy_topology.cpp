// A policy whose third type is no topology.
// expect: dtrain: the third type of Policy must be a topology, such as topology::Flat
#include "dtrain/dtrain.hpp"

#ifdef DTRAIN_COMPILE_FAIL
using Topology = dtrain::launch::PerNode;
#else
using Topology = dtrain::topology::Flat;
#endif

dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory, Topology> policy;
