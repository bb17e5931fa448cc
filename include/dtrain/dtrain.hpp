#pragma once
/// @file
/// All of dtrain: `#include <dtrain/dtrain.hpp>` needs nothing but a C++20 compiler.

#include "dtrain/async/when_all.hpp"
#include "dtrain/async/with_deadline.hpp"
#include "dtrain/backend/gloo.hpp"
#include "dtrain/backend/mpi.hpp"
#include "dtrain/backend/nccl.hpp"
#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/backend/staged.hpp"
#include "dtrain/core/bfloat16.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/float16.hpp"
#include "dtrain/core/float8.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/ddp/checkpoint.hpp"
#include "dtrain/ddp/sampler.hpp"
#include "dtrain/ddp/write_timeline.hpp"
#include "dtrain/distributed_data_parallel.hpp"
#include "dtrain/kernels/reduction.hpp"
#include "dtrain/launch/per_node.hpp"
#include "dtrain/launch/per_process.hpp"
#include "dtrain/policy.hpp"
#include "dtrain/process_group.hpp"
#include "dtrain/run.hpp"
#include "dtrain/stream/cuda/communication_stream.hpp"
#include "dtrain/stream/cuda/copy_batch.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/topology/cost.hpp"
#include "dtrain/topology/flat.hpp"
#include "dtrain/topology/hierarchical.hpp"
#include "dtrain/topology/parameter_server.hpp"
#include "dtrain/topology/ring.hpp"
#include "dtrain/topology/tree.hpp"

#if defined(DTRAIN_IMPLEMENTATION) && !DTRAIN_DEFINITIONS
#error "dtrain: define DTRAIN_IMPLEMENTATION before the first of dtrain's headers is included"
#endif
