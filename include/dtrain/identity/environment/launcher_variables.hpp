#pragma once
/// @file
/// Launcher variables: names of a launcher's variables for rank, world size, local rank and local world size.

#include <string>

#include "dtrain/identity/complete_identity.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// The names of one launcher.
struct LauncherVariables {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;

  bool give_both(const Variables& variables) const { return variables.has(rank) && variables.has(world_size); }

  std::string stated(const Variables& variables) const {
    return variables.stated({rank, world_size, local_rank, local_world_size});
  }

  /// The four values, without range checks. @pre give_both(variables). @throws IdentityError (bad-integer)
  ProcessIdentity read(const Variables& variables, const char* launcher) const {
    ProcessIdentity identity;
    identity.launcher = launcher;
    identity.rank = *variables.integer(rank);
    identity.world_size = *variables.integer(world_size);
    identity.local_rank = variables.integer(local_rank);
    identity.local_world_size = variables.integer(local_world_size);
    return identity;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
