// A policy whose second type carries no bytes.
// expect: dtrain: the second type of Policy must be a backend, such as backend::SharedMemory
#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/launch/per_process.hpp"
#include "dtrain/policy.hpp"
#include "dtrain/topology/topology.hpp"

#ifdef DTRAIN_COMPILE_FAIL
using Backend = dtrain::topology::Flat;
#else
using Backend = dtrain::backend::SharedMemory;
#endif

dtrain::Policy<dtrain::launch::PerProcess, Backend> policy;
