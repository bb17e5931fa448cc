#pragma once
/// @file
/// Source [horovod]: horovodrun with its own (Gloo) start of processes.

#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"
#include "dtrain/identity/master_address.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// HOROVOD_CROSS_RANK counts only the hosts that have this local rank, so on uneven hosts it is not the node's rank.
struct HorovodSource {
  static constexpr const char* name = "horovod";
  static constexpr LauncherVariables names{"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"};

  static bool present(const Variables& variables) { return names.give_both(variables); }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity identity = names.read(variables, name);
    complete_one_node(identity);
    check_ranges(identity, names.stated(variables));
    find_master_address(variables, MasterHints{}, names.stated(variables), identity);
    return identity;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
