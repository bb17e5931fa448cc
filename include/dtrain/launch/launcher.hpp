#pragma once
/// @file
/// Concept Launcher: the first type of a Policy, which PerNode, PerProcess and a program's own classes are. run() calls
/// its start(), which starts or identifies the processes; init_process_group() and init_elastic() ask whether it
/// returns into the program's code.

#include <concepts>
#include <string_view>

#include "dtrain/launch/backend_facts.hpp"
#include "dtrain/launch/rank_process.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// `L::start(argc, argv)`: returns a RankProcess in a process that is a rank. In other processes it returns the exit
/// code and prints errors on stderr. Blocking: in a launcher process, until its workers have ended.
/// @ingroup launchers
template <class L>
concept CanStart = requires(int argc, char** argv) {
  { L::start(argc, argv) } -> std::same_as<StartResult>;
};

/// `L::name()`: for messages.
/// @ingroup launchers
template <class L>
concept HasLauncherName = requires {
  { L::name() } -> std::convertible_to<std::string_view>;
};

/// `L::returns_into_user_code`: whether every process that calls start() becomes a rank. If false, one process remains
/// the launcher, and programs must use dtrain::run.
/// @ingroup launchers
template <class L>
concept StatesWhetherItReturns = requires {
  { L::returns_into_user_code } -> std::convertible_to<bool>;
};

/// The launcher type of a Policy. It has no state.
/// @ingroup launchers
template <class L>
concept Launcher = CanStart<L> && HasLauncherName<L> && StatesWhetherItReturns<L>;

}  // namespace DTRAIN_NAMESPACE::launch
