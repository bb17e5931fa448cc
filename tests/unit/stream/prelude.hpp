#pragma once
/// @file
/// The headers and names that most tests of stream/ use.

#include "dtrain/stream/host/communication_stream.hpp"
#include "support/gate.hpp"
#include "support/prelude.hpp"

using namespace dtrain::stream::host;
using dtrain::Deadline;
using dtrain::stream::WaitResult;
using support::holds_soon;
