#pragma once
/// @file
/// Definition of the function of identity/resolve_identity.hpp.

#include <optional>
#include <string>

#include "dtrain/identity/job_name.hpp"
#include "dtrain/identity/process_sources.hpp"
#include "dtrain/identity/resolve_identity.hpp"

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
