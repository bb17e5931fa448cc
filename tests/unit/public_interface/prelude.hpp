#pragma once
/// @file
/// The headers and names that most tests of public_interface/ use.

#include <filesystem>

#include "dtrain/dtrain.hpp"
#include "dtrain/rendezvous/membership/host_identity.hpp"
#include "support/allocation_count.hpp"
#include "support/gate.hpp"
#include "support/memory_transport.hpp"
#include "support/prelude.hpp"
#include "support/store_backend.hpp"
#include "support/summary_file.hpp"
#include "support/temporary_directory.hpp"
#include "support/thread_group.hpp"
#include "unit/public_interface/shared_memory_job.hpp"
#include "unit/public_interface/whole_optimizer.hpp"

namespace optimizers = dtrain::optimizers;

using namespace front_test;
using dtrain::bfloat16;
using dtrain::DdpOptions;
using dtrain::Deadline;
using dtrain::DistributedDataParallel;
using dtrain::Errc;
using dtrain::float16;
using dtrain::GradientNorm;
using dtrain::Ready;
using dtrain::ReduceOp;
using dtrain::ShardedOptimizer;
using dtrain::ShardedOptions;
using dtrain::ddp::StepEvent;
using dtrain::ddp::StepRecord;
using dtrain::stream::host::Progress;
using support::RankEnd;
using support::run_groups;
using support::sentence_of;
using support::TemporaryDirectory;
using support::TemporaryFile;
