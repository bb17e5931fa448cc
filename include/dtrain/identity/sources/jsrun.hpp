#pragma once
/// @file
/// Source [jsrun]: IBM's launcher for LSF.

#include "dtrain/identity/launcher_variables.hpp"
#include "dtrain/identity/local_rank_argument.hpp"
#include "dtrain/identity/master.hpp"

namespace DTRAIN_NAMESPACE::identity {

struct JsrunSource {
  static constexpr const char* name = "jsrun";
  static constexpr LauncherVariables names{"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
                                           "JSM_NAMESPACE_LOCAL_SIZE"};

  static bool present(const Variables& variables) { return names.give_both(variables); }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity who = names.read(variables, name);
    complete_one_node(who);
    check_ranges(who, names.stated(variables));
    find_master(variables, MasterHints{}, names.stated(variables), who);
    return who;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
