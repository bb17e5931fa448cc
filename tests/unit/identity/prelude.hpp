#pragma once
/// @file
/// The headers and names that most tests of identity/ use.

#include "dtrain/identity/choose_start.hpp"
#include "dtrain/identity/formats/json.hpp"
#include "dtrain/identity/node_identity.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/identity/resolve_identity.hpp"
#include "support/prelude.hpp"
#include "unit/identity/outcome.hpp"

namespace identity = dtrain::identity;

using namespace dtrain::identity;
using namespace outcome;
