#pragma once
/// @file
/// The headers and names that most tests of backend/ use.

#include "dtrain/backend/message_passing/algorithms/algorithm_selection.hpp"
#include "dtrain/backend/shared_memory.hpp"
#include "support/captured_stderr.hpp"
#include "support/channel_context.hpp"
#include "support/element_bytes.hpp"
#include "support/exact_values.hpp"
#include "support/gate.hpp"
#include "support/host_rank.hpp"
#include "support/large_values.hpp"
#include "support/memory_endpoint.hpp"
#include "support/open_descriptors.hpp"
#include "support/prelude.hpp"
#include "support/reference_reduction.hpp"
#include "support/routine_ranks.hpp"
#include "support/scalar_chain.hpp"
#include "support/scalar_reduction.hpp"
#include "support/thread_ranks.hpp"

namespace backend = dtrain::backend;
namespace passing = dtrain::backend::message_passing;

using dtrain::Accumulate;
using dtrain::BufferView;
using dtrain::CauseKind;
using dtrain::ConstBufferView;
using dtrain::Deadline;
using dtrain::DType;
using dtrain::Errc;
using dtrain::ReduceOp;
using dtrain::size_bytes;
using dtrain::backend::AllGather;
using dtrain::backend::AllReduce;
using dtrain::backend::Barrier;
using dtrain::backend::Broadcast;
using dtrain::backend::Operation;
using dtrain::backend::OperationKind;
using dtrain::backend::ReduceScatter;
using support::ByteVector;
using support::FakeJob;
using support::RankThread;
using support::RoutineEndpoint;
using support::run_ranks;
using support::run_thread_ranks;

using SharedMemoryRank = support::HostRank<dtrain::backend::SharedMemory>;
