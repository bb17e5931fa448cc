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
#include "support/expect_error.hpp"

using namespace dtrain::async;
using namespace dtrain;
using namespace std::chrono_literals;
