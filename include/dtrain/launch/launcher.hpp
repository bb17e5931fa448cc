#pragma once
/// @file
/// The contract of a launcher: how the processes of a job come to be, the first type of a Policy.

#include <concepts>
#include <string_view>

#include "dtrain/launch/rank_process.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Counts the devices of the kind that a policy's backend computes on; null where that is the host.
using VisibleDevices = int (*)();

/// What a launcher asks of a policy's backend before it starts anything.
struct BackendFacts {
  std::string_view name{};  ///< for messages
  VisibleDevices visible_devices = nullptr;
  int most_ranks = 0;  ///< that it joins on one host; 0: as many as there are
};

/// `L::start(argc, argv)`: in a process that is a rank, a RankProcess; in every other, the exit code, with everything
/// explained on stderr. Blocking: in a launcher process, until its workers have ended.
template <class L>
concept CanStart = requires(int argc, char** argv) {
  { L::start(argc, argv) } -> std::same_as<StartResult>;
};

/// `L::name()`: for messages.
template <class L>
concept HasLauncherName = requires {
  { L::name() } -> std::convertible_to<std::string_view>;
};

/// `L::returns_into_user_code`: whether every process that calls start() becomes a rank. Where one does not (it stays
/// the launcher), only dtrain::run can be used.
template <class L>
concept StatesWhetherItReturns = requires {
  { L::returns_into_user_code } -> std::convertible_to<bool>;
};

/// The type a Policy names, which makes processes into ranks. It has no state of its own.
template <class L>
concept Launcher = CanStart<L> && HasLauncherName<L> && StatesWhetherItReturns<L>;

}  // namespace DTRAIN_NAMESPACE::launch
