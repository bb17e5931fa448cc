#pragma once
/// @file
/// IdentityError: variables that are invalid, contradictory or incomplete as a process's identity. IdentityErrc: its
/// stable codes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// The codes of IdentityError. Each has a stable name for scripts: `whoami` prints it as error_code.
/// @ingroup errors
enum class IdentityErrc : std::uint8_t {
  bad_integer = 1,
  bad_port,
  bad_hostlist,
  bad_tasks_per_node,
  ambiguous_address,
  conflict_rank,
  conflict_local_rank,
  rank_out_of_range,
  no_rank,
  no_world_size,
  no_master_addr,
  node_level_env,
  pmix_only,
  many_launchers,
  tf_malformed,
  tf_no_task,
  tf_not_trainer,
  tf_bad_index,
  sm_host,
  elastic_range,
  unknown_launcher,
  half_identity,
};

constexpr std::string_view name(IdentityErrc code) noexcept {
  switch (code) {
    case IdentityErrc::bad_integer: return "bad-integer";
    case IdentityErrc::bad_port: return "bad-port";
    case IdentityErrc::bad_hostlist: return "bad-hostlist";
    case IdentityErrc::bad_tasks_per_node: return "bad-tasks-per-node";
    case IdentityErrc::ambiguous_address: return "ambiguous-address";
    case IdentityErrc::conflict_rank: return "conflict-rank";
    case IdentityErrc::conflict_local_rank: return "conflict-local-rank";
    case IdentityErrc::rank_out_of_range: return "rank-out-of-range";
    case IdentityErrc::no_rank: return "no-rank";
    case IdentityErrc::no_world_size: return "no-world-size";
    case IdentityErrc::no_master_addr: return "no-master-addr";
    case IdentityErrc::node_level_env: return "node-level-env";
    case IdentityErrc::pmix_only: return "pmix-only";
    case IdentityErrc::many_launchers: return "many-launchers";
    case IdentityErrc::tf_malformed: return "tf-malformed";
    case IdentityErrc::tf_no_task: return "tf-no-task";
    case IdentityErrc::tf_not_trainer: return "tf-not-trainer";
    case IdentityErrc::tf_bad_index: return "tf-bad-index";
    case IdentityErrc::sm_host: return "sm-host";
    case IdentityErrc::elastic_range: return "elastic-range";
    case IdentityErrc::unknown_launcher: return "unknown-launcher";
    case IdentityErrc::half_identity: return "half-identity";
  }
  return "unknown";
}

/// An environment that does not identify the process. The sentence names the variable, its value, and the remedy.
/// @ingroup errors
class IdentityError : public Error {
 public:
  IdentityError(IdentityErrc reason, std::string sentence, SourceLocation where = SourceLocation::current())
      : Error(Errc::identity, std::move(sentence), where), reason_(reason) {}

  IdentityErrc reason() const noexcept { return reason_; }

 private:
  IdentityErrc reason_;
};

namespace detail {
[[noreturn]] DTRAIN_NOT_INLINED inline void throw_identity(IdentityErrc reason, const char* pattern,
                                                           const TextValue* values, const char* file,
                                                           const char* function, unsigned line) {
  throw IdentityError(reason, dtrain::detail::format_values(pattern, values),
                      SourceLocation::current(file, function, line));
}
}  // namespace detail

/// Throws IdentityError(reason, format_text(pattern, values)), as throw_error() does an Error.
template <std::size_t Count>
[[noreturn]] void throw_identity_error(IdentityErrc reason, std::type_identity_t<TextPattern<Count>> pattern,
                                       const TextValue (&values)[Count],
                                       SourceLocation where = SourceLocation::current()) {
  detail::throw_identity(reason, pattern.characters(), values, where.file, where.function, where.line);
}

}  // namespace DTRAIN_NAMESPACE::identity
