#pragma once
/// @file
/// Launcher: concept of a Policy's first type; start() starts the job's processes, or identifies this one.

#include <concepts>
#include <string_view>
#include <type_traits>

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

/// `L::also_joins`, optional: true if programs may also join a job as a rank that another launcher has started, with
/// dtrain::init_process_group and dtrain::init_elastic, which never start a process.
/// @ingroup launchers
template <class L>
concept AlsoJoins = requires {
  requires std::bool_constant<L::also_joins>::value;
};

/// Whether a process that another launcher has started can be a rank.
template <class L>
inline constexpr bool joins_other_launchers = AlsoJoins<L> || L::returns_into_user_code;

/// The launcher type of a Policy. It has no state.
/// @ingroup launchers
template <class L>
concept Launcher = CanStart<L> && HasLauncherName<L> && StatesWhetherItReturns<L>;

}  // namespace DTRAIN_NAMESPACE::launch
