// A policy whose first type starts nothing.
// expect: dtrain: the first type of Policy must be a launcher: launch::Any, launch::PerNode or launch::PerProcess
#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/launch/per_process.hpp"
#include "dtrain/policy.hpp"
#include "dtrain/topology/topology.hpp"

#ifdef DTRAIN_COMPILE_FAIL
using Launcher = dtrain::backend::SharedMemory;
#else
using Launcher = dtrain::launch::PerProcess;
#endif

dtrain::Policy<Launcher, dtrain::backend::SharedMemory> policy;
