#pragma once
/// @file
/// Identity resolution: the ProcessIdentity that a process's variables and arguments give, with its job's name. Pure.

#include "dtrain/core/config.hpp"
#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/identity_error.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/identity/variables.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// Whether DTRAIN_WORLD_SIZE is MIN:MAX, which describes a worker of an elastic job, unless DTRAIN_LAUNCHER names
/// another source.
inline bool states_elastic_range(const Variables& variables) {
  return is_range(variables.text("DTRAIN_WORLD_SIZE").value_or("")) && !variables.has("DTRAIN_LAUNCHER");
}

/// The identity of a process with this environment and these arguments. Pure: does not read the real environment.
/// @throws IdentityError if the environment is contradictory or incomplete; elastic-range if states_elastic_range():
/// the worker has no rank
/// @ingroup launchers
ProcessIdentity process_identity(const Environment& environment, Arguments arguments = {});

/// Fills in job, is_exact_job, one_starter and rank_variable, from the launcher of the identity. Pure.
void name_job(const Variables& variables, ProcessIdentity& identity);

}  // namespace DTRAIN_NAMESPACE::identity

#if DTRAIN_DEFINITIONS

#include <optional>
#include <string_view>

#include "dtrain/identity/job_name.hpp"
#include "dtrain/identity/process_sources.hpp"

namespace DTRAIN_NAMESPACE::identity {

DTRAIN_DEFINED ProcessIdentity process_identity(const Environment& environment, Arguments arguments) {
  const Variables variables(environment);
  if (states_elastic_range(variables)) {
    throw_identity_error(IdentityErrc::elastic_range,
                         "{} is a range, and this program takes a group of fixed size; give run() a body that takes a "
                         "dtrain::Elastic, or set DTRAIN_WORLD_SIZE to one number",
                         {variables.stated({"DTRAIN_WORLD_SIZE"})});
  }
  const std::optional<std::string_view> wanted = variables.text("DTRAIN_LAUNCHER");
  const IdentitySource& source = wanted ? detail::forced_source(variables, *wanted) : detail::first_source(variables);
  ProcessIdentity identity = source.read(variables, arguments);
  name_job(variables, identity);
  detail::note_ignored(source, variables, arguments, identity);
  return identity;
}

DTRAIN_DEFINED void name_job(const Variables& variables, ProcessIdentity& identity) {
  const std::string_view launcher = starting_launcher(variables, identity);
  for (const IdentitySource& source : sources) {
    if (source.name == launcher) {
      identity.rank_variable = source.needs.front();
      identity.one_starter = source.one_starter || identity.elastic;
    }
  }
  const std::optional<std::string> given = given_job_name(variables);
  const std::optional<std::string> launch = given ? given : detail::launch_name(variables, launcher);
  if (given || !identity.elastic) {
    identity.job = launch ? launch : detail::allocation_name(variables, launcher);
  }
  identity.is_exact_job =
      launch || (identity.elastic && identity.job != "none");  // torchrun's run id of a job without a name
}

}  // namespace DTRAIN_NAMESPACE::identity

#endif  // DTRAIN_DEFINITIONS
