#pragma once
/// @file
/// All of dtrain: `#include <dtrain/dtrain.hpp>` needs nothing but a C++20 compiler.

#include "dtrain/async/when_all.hpp"
#include "dtrain/async/with_deadline.hpp"
#include "dtrain/backend/mpi.hpp"
#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/core/bfloat16.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/float16.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/ddp/sampler.hpp"
#include "dtrain/distributed_data_parallel.hpp"
#include "dtrain/kernels/reduction.hpp"
#include "dtrain/launch/per_node.hpp"
#include "dtrain/launch/per_process.hpp"
#include "dtrain/policy.hpp"
#include "dtrain/process_group.hpp"
#include "dtrain/run.hpp"
#include "dtrain/topology/flat.hpp"
