#pragma once
/// @file
/// Identity resolution: the ProcessIdentity of an environment; pure.

#include "dtrain/core/config.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"
#include "dtrain/identity/identity_error.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/identity/variables.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// The identity of a process with this environment and these arguments. Pure: does not read the real environment.
/// @throws IdentityError if the environment is contradictory or incomplete
/// @ingroup launchers
ProcessIdentity process_identity(const Environment& environment, Arguments arguments = {});

}  // namespace DTRAIN_NAMESPACE::identity

#if DTRAIN_DEFINITIONS

#include <optional>
#include <string>

#include "dtrain/identity/job_name.hpp"
#include "dtrain/identity/process_sources.hpp"

namespace DTRAIN_NAMESPACE::identity {

DTRAIN_DEFINED ProcessIdentity process_identity(const Environment& environment, Arguments arguments) {
  const Variables variables(environment);
  const std::optional<std::string_view> wanted = variables.text("DTRAIN_LAUNCHER");
  const IdentitySource& source = wanted ? detail::forced_source(variables, *wanted) : detail::first_source(variables);
  ProcessIdentity identity = source.read(variables, arguments);
  name_job(variables, identity);
  detail::note_ignored(source, variables, arguments, identity);
  return identity;
}

}  // namespace DTRAIN_NAMESPACE::identity

#endif  // DTRAIN_DEFINITIONS
