#pragma once
/// @file
/// LauncherVariables: the names of one launcher's variables for rank and sizes, their reads and range checks.
/// Arguments: a program's argv.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/identity/process_identity.hpp"
#include "dtrain/identity/variables.hpp"

namespace DTRAIN_NAMESPACE::identity {

inline constexpr const char* loopback_address = "127.0.0.1";

/// A rank and its job's world size, to compare two launchers.
struct RankAndSize {
  int rank = 0;
  int world_size = 1;

  friend bool operator==(const RankAndSize&, const RankAndSize&) = default;
};

/// The names of one launcher. An empty name is a variable that it does not set.
struct LauncherVariables {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank = "";
  const char* local_world_size = "";
  const char* node_rank = "";
  const char* node_count = "";

  bool give_both(const Variables& variables) const { return variables.has(rank) && variables.has(world_size); }

  /// nullopt unless both are numbers. For comparing sources, so it does not throw.
  std::optional<RankAndSize> rank_and_size(const Variables& variables) const {
    const std::optional<int> stated_rank = parse_integer(variables.text(rank).value_or(""));
    const std::optional<int> stated_size = parse_integer(variables.text(world_size).value_or(""));
    return stated_rank && stated_size ? std::optional(RankAndSize{*stated_rank, *stated_size}) : std::nullopt;
  }

  std::string stated(const Variables& variables) const {
    return variables.stated({rank, world_size, local_rank, local_world_size, node_rank, node_count});
  }

  /// The values, without range checks. @pre give_both(variables). @throws IdentityError (bad-integer)
  ProcessIdentity read(const Variables& variables) const {
    ProcessIdentity identity;
    identity.launcher = launcher;
    identity.rank = *variables.integer(rank);
    identity.world_size = *variables.integer(world_size);
    identity.local_rank = variables.integer(local_rank);
    identity.local_world_size = variables.integer(local_world_size);
    identity.node_rank = variables.integer(node_rank);
    identity.node_count = variables.count(node_count);
    return identity;
  }
};

/// Whether the job has one node: local world size = world size, or node count = 1, or world size = 1.
inline bool on_one_node(const ProcessIdentity& identity) noexcept {
  return identity.world_size == 1 || identity.node_count == 1 || identity.local_world_size == identity.world_size;
}

/// On one node, sets node rank 0 of 1, and a missing local world size to the world size. With world size 1, also sets a
/// missing local rank to 0. These values are certain, so sources call it before they guess other fields.
inline void complete_one_node(ProcessIdentity& identity) {
  if (!on_one_node(identity)) {
    return;
  }
  identity.node_rank = 0;
  identity.node_count = 1;
  identity.local_world_size = identity.local_world_size.value_or(identity.world_size);
  if (identity.world_size == 1) {
    identity.local_rank = identity.local_rank.value_or(0);
  }
}

namespace detail {

/// Checks that `index` < `bound` if both are known, and that `bound` is not 0.
inline void check_below(const char* index_name, std::optional<int> index, const char* bound_name,
                        std::optional<int> bound, const std::string& stated) {
  if (!index && bound == 0) {
    throw_identity_error(IdentityErrc::rank_out_of_range, "{} is 0 ({}); set it to 1 or more, or unset it",
                         {bound_name, stated});
  }
  if (index && bound && *index >= *bound) {
    throw_identity_error(IdentityErrc::rank_out_of_range,
                         "{} {} is not below {} {} ({}); set both for the same job, counting from 0",
                         {index_name, *index, bound_name, *bound, stated});
  }
}

/// Calls `take(flag, value)` for --local_rank=N and --local-rank=N, also with a separate value, and `keep(argument)`
/// for all else: the program's name, other arguments, and "--" with what follows it.
template <class Texts, class Take, class Keep>
void split_local_rank(const Texts& arguments, Take take, Keep keep) {
  bool are_all_kept = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    const std::size_t equals = argument.find('=');
    const std::string_view flag = argument.substr(0, equals);
    are_all_kept = are_all_kept || (i > 0 && argument == "--");
    if (i == 0 || are_all_kept || (flag != "--local_rank" && flag != "--local-rank")) {
      keep(argument);
    } else if (equals != std::string_view::npos) {
      take(flag, argument.substr(equals + 1));
    } else {
      take(flag, ++i < arguments.size() ? std::string_view(arguments[i]) : std::string_view());
    }
  }
}

}  // namespace detail

/// @throws IdentityError (rank-out-of-range) for a rank that is not below its size, or a local world size above the
/// world size.
/// @param stated the variables of the identity, as Variables::stated() returns them
inline void check_ranges(const ProcessIdentity& identity, const std::string& stated) {
  detail::check_below("rank", identity.rank, "world size", identity.world_size, stated);
  detail::check_below("local rank", identity.local_rank, "local world size", identity.local_world_size, stated);
  detail::check_below("node rank", identity.node_rank, "node count", identity.node_count, stated);
  if (identity.local_world_size && *identity.local_world_size > identity.world_size) {
    throw_identity_error(IdentityErrc::rank_out_of_range,
                         "local world size {} is above world size {} ({}); set both for the same job",
                         {*identity.local_world_size, identity.world_size, stated});
  }
}

/// The value of `variable`; if it is unset, the loopback address on one node.
/// @throws IdentityError (no-master-addr) for several nodes; the sentence names the variable to set
inline std::string master_addr_or_loopback(const Variables& variables, const char* variable,
                                           const ProcessIdentity& identity) {
  if (const std::optional<std::string_view> given = variables.text(variable)) {
    return std::string(*given);
  }
  if (on_one_node(identity)) {
    return loopback_address;
  }
  throw_identity_error(
      IdentityErrc::no_master_addr,
      "{} is not set, and nothing says that all {} processes run on one node; set {} on every process to the host of "
      "rank 0",
      {variable, identity.world_size, variable});
}

/// A program's argv, the program's name included.
using Arguments = std::span<const char* const>;

/// N of --local_rank=N, --local-rank=N, or either with a separate value. Ignores arguments after "--".
/// @throws IdentityError (bad-integer; conflict-local-rank for two different values)
inline std::optional<int> local_rank_argument(Arguments arguments) {
  std::optional<int> found;
  const auto take = [&found](std::string_view flag, std::string_view value) {
    const std::optional<int> number = parse_integer(value);
    if (!number) {
      throw_identity_error(IdentityErrc::bad_integer,
                           "the argument {} is not a non-negative integer; give it as --local_rank=N",
                           {quoted(flag, value)});
    }
    if (found && *found != *number) {
      throw_identity_error(IdentityErrc::conflict_local_rank,
                           "the argument --local_rank is given twice, as {} and {}; give it once", {*found, *number});
    }
    found = number;
  };
  detail::split_local_rank(arguments, take, [](std::string_view) {});
  return found;
}

/// The arguments without --local_rank=N, which torch.distributed.launch and DeepSpeed add to every program.
inline std::vector<std::string> without_local_rank(const std::vector<std::string>& arguments) {
  std::vector<std::string> kept;
  detail::split_local_rank(
      arguments, [](std::string_view, std::string_view) {},
      [&kept](std::string_view each) { kept.emplace_back(each); });
  return kept;
}

}  // namespace DTRAIN_NAMESPACE::identity
