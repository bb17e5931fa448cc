#pragma once
/// @file
/// The headers and names that most tests of stream/ use.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "dtrain/stream/host/communication_stream.hpp"
#include "support/expect_error.hpp"
#include "support/gate.hpp"

using namespace dtrain::stream::host;
using namespace std::chrono_literals;
using dtrain::Deadline;
using dtrain::stream::WaitResult;
using support::holds_soon;
