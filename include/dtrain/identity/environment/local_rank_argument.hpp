#pragma once
/// @file
/// Arguments: a program's argv; reads and removes --local_rank=N, which torch.distributed.launch adds.

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
inline bool is_local_rank_flag(std::string_view text) noexcept {
  return text == "--local_rank" || text == "--local-rank";
}
}  // namespace detail

/// N of --local_rank=N, --local-rank=N, or either with a separate value. Ignores arguments after "--".
/// @throws IdentityError (bad-integer; conflict-local-rank for two different values)
inline std::optional<int> local_rank_argument(Arguments arguments) {
  std::optional<int> found;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--") {
      break;
    }
    const std::size_t equals = argument.find('=');
    const std::string_view flag = argument.substr(0, equals);
    if (!detail::is_local_rank_flag(flag)) {
      continue;
    }
    std::string_view value;
    if (equals != std::string_view::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    }
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
  }
  return found;
}

/// The arguments without --local_rank=N, which torch.distributed.launch and DeepSpeed add to every program.
inline std::vector<std::string> without_local_rank(const std::vector<std::string>& arguments) {
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      kept.insert(kept.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
      break;
    }
    const std::size_t equals = argument.find('=');
    if (i == 0 || !detail::is_local_rank_flag(std::string_view(argument).substr(0, equals))) {
      kept.push_back(argument);
    } else if (equals == std::string::npos) {
      ++i;
    }
  }
  return kept;
}

}  // namespace DTRAIN_NAMESPACE::identity
