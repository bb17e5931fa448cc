#pragma once
/// @file
/// The headers and names that most tests of gloo/ use.

#include "dtrain/backend/gloo.hpp"
#include "dtrain/topology/hierarchical.hpp"
#include "support/host_rank.hpp"
#include "support/prelude.hpp"
#include "support/skip.hpp"

using namespace dtrain::backend;
using namespace support;
using dtrain::BufferView;
using dtrain::CauseKind;
using dtrain::Deadline;
using dtrain::DType;
using dtrain::Errc;
using dtrain::Error;
using dtrain::ReduceOp;

#if DTRAIN_WITH_GLOO
using GlooRank = HostRank<Gloo>;
#endif
