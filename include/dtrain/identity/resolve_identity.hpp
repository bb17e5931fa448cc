#pragma once
/// @file
/// Identity resolution: the ProcessIdentity of an environment; pure.

#include "dtrain/core/config.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/identity/identity_error.hpp"
#include "dtrain/identity/process_identity.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// The identity of a process with this environment and these arguments. Pure: does not read the real environment.
/// @throws IdentityError if the environment is contradictory or incomplete
ProcessIdentity process_identity(const Environment& environment, Arguments arguments = {});

}  // namespace DTRAIN_NAMESPACE::identity

#if DTRAIN_DEFINITIONS
#include "dtrain/identity/resolve_identity_definitions.hpp"
#endif
