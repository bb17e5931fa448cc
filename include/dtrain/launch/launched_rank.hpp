#pragma once
/// @file
/// The RankProcess of a process that launch::PerNode has started, or that is the only rank.

#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/launch/rank_process.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Rank 0 of 1; ignores ranks in the environment. It hosts the store. Closed standard descriptors become /dev/null.
/// @throws Error (usage) for an invalid setting
RankProcess rank_process_alone(const identity::Environment& environment, std::vector<std::string> arguments);

/// The worker that launch::PerNode's launcher started as this process. The launcher hosts the store.
/// @throws as rank_process_of
RankProcess rank_process_of_launcher(const identity::Environment& environment, std::vector<std::string> arguments);

}  // namespace DTRAIN_NAMESPACE::launch

#if DTRAIN_DEFINITIONS

#include <utility>

#include "dtrain/identity/launchers/launchers.hpp"
#include "dtrain/identity/launchers/single.hpp"
#include "dtrain/launch/configuration/settings.hpp"
#include "dtrain/launch/supervise/process_setup.hpp"

namespace DTRAIN_NAMESPACE::launch {

DTRAIN_DEFINED RankProcess rank_process_alone(const identity::Environment& environment,
                                              std::vector<std::string> arguments) {
  open_standard_descriptors();
  const identity::Variables variables(environment);
  check_log_setting(variables);
  const identity::Environment nothing;
  RankProcess worker =
      detail::rank_process_with(identity::SingleSource::read(identity::Variables(nothing), {}), variables);
  worker.argument_vector = ArgumentVector(std::move(arguments));
  worker.hosts_store = true;
  return worker;
}

DTRAIN_DEFINED RankProcess rank_process_of_launcher(const identity::Environment& environment,
                                                    std::vector<std::string> arguments) {
  const identity::Variables variables(environment);
  RankProcess worker = detail::rank_process_with(identity::read_dtrain(variables, {}), variables);
  worker.argument_vector = ArgumentVector(std::move(arguments));
  return worker;
}

}  // namespace DTRAIN_NAMESPACE::launch

#endif  // DTRAIN_DEFINITIONS
