#pragma once
/// @file
/// Arguments: a program's argv; --local_rank=N of torch.distributed.launch, for sources, removed by rank_process.hpp.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/identity/variables.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// A program's argv, the program's name included.
using Arguments = std::span<const char* const>;

namespace detail {

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
