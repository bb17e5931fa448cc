#pragma once
/// @file
/// The headers and names that most tests of net/ use.

#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/net/framing/frame.hpp"
#include "support/expect_error.hpp"
#include "support/loop_test.hpp"

using namespace dtrain::net;
using namespace dtrain;
using namespace loop_test;
using namespace std::chrono_literals;
