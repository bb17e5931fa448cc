#pragma once
/// @file
/// The headers and names that most tests of async/ use.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/async/thread.hpp"
#include "support/expect_error.hpp"
#include "support/loop_test.hpp"

using namespace dtrain::async;
using namespace dtrain;
using namespace loop_test;
using namespace std::chrono_literals;
