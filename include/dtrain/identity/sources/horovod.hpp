#pragma once
/// @file
/// Source [horovod]: a process that horovodrun started with Gloo.

#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"
#include "dtrain/identity/master_address.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// HOROVOD_CROSS_RANK is not used: it counts only hosts that have this local rank. If hosts have different numbers of
/// ranks, it is not the node rank.
struct HorovodSource {
  static constexpr const char* name = "horovod";
  static constexpr LauncherVariables names{"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"};

  static bool present(const Variables& variables) { return names.give_both(variables); }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity identity = names.read(variables, name);
    complete_identity(variables, MasterHints{}, names.stated(variables), identity);
    return identity;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
