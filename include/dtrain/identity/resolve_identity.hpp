#pragma once
/// @file
/// The pure function that turns an environment into a ProcessIdentity.

#include "dtrain/core/config.hpp"
#include "dtrain/identity/description.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/identity/identity_error.hpp"
#include "dtrain/identity/process_identity.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// Who the process with this environment and these arguments is. Pure: the same values give the same answer, whatever
/// the real environment.
/// @throws IdentityError where the environment contradicts itself or says only half.
ProcessIdentity process_identity(const Environment& environment, Arguments arguments = {});

}  // namespace DTRAIN_NAMESPACE::identity

#if DTRAIN_DEFINITIONS
#include "dtrain/identity/resolve_identity_definitions.hpp"
#endif
