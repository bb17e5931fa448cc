#pragma once
/// @file
/// The headers and names that most tests of gloo/ use.

#include <doctest/doctest.h>

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/backend/gloo.hpp"
#include "dtrain/topology/hierarchical.hpp"
#include "support/expect_error.hpp"
#include "support/host_rank.hpp"
#include "support/skip.hpp"

using namespace dtrain::backend;
using namespace std::chrono_literals;
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
