#pragma once
/// @file
/// The headers and names that most tests of async/ use.

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/async/thread.hpp"
#include "support/loop_test.hpp"
#include "support/prelude.hpp"

using namespace dtrain::async;
using namespace dtrain;
using namespace loop_test;
