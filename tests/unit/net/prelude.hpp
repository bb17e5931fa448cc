#pragma once
/// @file
/// The headers and names that most tests of net/ use.

#include "dtrain/net/framing/frame.hpp"
#include "support/loop_test.hpp"
#include "support/prelude.hpp"

using namespace dtrain::net;
using namespace dtrain;
using namespace loop_test;
