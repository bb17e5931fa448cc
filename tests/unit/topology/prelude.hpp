#pragma once
/// @file
/// The headers and names that most tests of topology/ use.

#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/topology/hierarchical.hpp"
#include "dtrain/topology/message_algorithms.hpp"
#include "support/backend_archetypes.hpp"
#include "support/host_rank.hpp"
#include "support/prelude.hpp"
#include "unit/topology/all_reduce.hpp"

namespace topology = dtrain::topology;

using namespace dtrain::topology;
using archetype::CommunicatorLacks;
using dtrain::Deadline;
using dtrain::backend::AllReduce;
using dtrain::backend::Barrier;
using dtrain::backend::Broadcast;
using dtrain::backend::SharedMemory;
