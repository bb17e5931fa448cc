#pragma once
/// @file
/// The policies that benchmarks run between hosts, each where its library was found.

#include "dtrain/dtrain.hpp"

namespace bench {

#if DTRAIN_WITH_MPI
using MpiPolicy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Mpi>;
#endif
#if DTRAIN_WITH_GLOO
using GlooPolicy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::Gloo>;
#endif

}  // namespace bench
