// A policy whose first type starts nothing.
// expect: dtrain: the first type of Policy must be a launcher: launch::PerNode or launch::PerProcess
#include "dtrain/dtrain.hpp"

#ifdef DTRAIN_COMPILE_FAIL
using Launcher = dtrain::backend::SharedMemory;
#else
using Launcher = dtrain::launch::PerNode;
#endif

dtrain::Policy<Launcher, dtrain::backend::SharedMemory> policy;
