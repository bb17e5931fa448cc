// A policy whose second type carries no bytes.
// expect: dtrain: the second type of Policy must be a backend, such as backend::SharedMemory
#include "dtrain/dtrain.hpp"

#ifdef DTRAIN_COMPILE_FAIL
using Backend = dtrain::topology::Flat;
#else
using Backend = dtrain::backend::SharedMemory;
#endif

dtrain::Policy<dtrain::launch::PerNode, Backend> policy;
