#pragma once
/// @file
/// Source [jsrun]: IBM's launcher for LSF.

#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"
#include "dtrain/identity/master_address.hpp"

namespace DTRAIN_NAMESPACE::identity {

struct JsrunSource {
  static constexpr const char* name = "jsrun";
  static constexpr LauncherVariables names{"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
                                           "JSM_NAMESPACE_LOCAL_SIZE"};

  static bool present(const Variables& variables) { return names.give_both(variables); }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity identity = names.read(variables, name);
    complete_identity(variables, MasterHints{}, names.stated(variables), identity);
    return identity;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
