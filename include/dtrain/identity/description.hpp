#pragma once
/// @file
/// Description of an identity as one line of text.

#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/sanitize.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/identity/process_identity.hpp"

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

/// "local rank 1 of 2". Ranks compute unknown values, and confirm guessed ones, after connecting.
inline std::string part_of_whole(const ProcessIdentity& identity, std::string_view name, const std::optional<int>& part,
                                 const std::optional<int>& whole, bool guessed) {
  std::string text(name);
  if (!part) {
    return text + " learnt after connecting";
  }
  text +=
      " " + std::to_string(*part) + (whole ? " of " + std::to_string(*whole) : " of a number learnt after connecting");
  return text + (guessed && identity.world_size > 1 ? " (a guess, confirmed after connecting)" : "");
}

inline std::string joined(const std::vector<std::string>& texts) {
  std::string list;
  for (const std::string& text : texts) {
    list += (list.empty() ? "" : ", ") + text;
  }
  return list;
}

}  // namespace detail

/// "identity from RANK and WORLD_SIZE: rank 1 of 4, local rank 1 of 2, node 0 of 2, store at h0:29500; ignored: slurm",
/// then the warnings.
inline std::string to_string(const ProcessIdentity& identity) {
  std::string line = "identity from " + identity.source_text() + ": rank " + std::to_string(identity.rank) + " of " +
                     std::to_string(identity.world_size);
  line += ", " +
          detail::part_of_whole(identity, "local rank", identity.local_rank, identity.local_world_size,
                                identity.is_provisional("local_rank") || identity.is_provisional("local_world_size"));
  line += ", " + detail::part_of_whole(identity, "node", identity.node_rank, identity.node_count,
                                       identity.is_provisional("node_rank") || identity.is_provisional("node_count"));
  constexpr std::size_t longest_name = 253;  // maximum of DNS
  const std::string address = excerpt(identity.master_addr.value_or("an address not known yet"), longest_name);
  const bool brackets = address.find(':') != std::string::npos && address.front() != '[';
  line += ", store at " + (brackets ? "[" + address + "]" : address);
  line += identity.master_port ? ":" + std::to_string(*identity.master_port) : "";
  line += identity.is_provisional("master_addr") ? " (a guess)" : "";
  line += identity.attempt > 0 ? ", attempt " + std::to_string(identity.attempt) : "";
  line += identity.ignored.empty() ? "" : "; ignored: " + detail::joined(identity.ignored);
  for (const std::string& warning : identity.warnings) {
    line += "; " + warning;
  }
  return line;
}

}  // namespace DTRAIN_NAMESPACE::identity
