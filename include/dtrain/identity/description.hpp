#pragma once
/// @file
/// An identity as one line for people.

#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/printable.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/identity/variables.hpp"

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

/// "local rank 1 of 2"; a part that is not known is learnt, one that is a guess is confirmed.
inline std::string part_of_whole(const ProcessIdentity& who, std::string_view name, const std::optional<int>& part,
                                 const std::optional<int>& whole, bool guessed) {
  std::string text(name);
  if (!part) {
    return text + " learnt after connecting";
  }
  text +=
      " " + std::to_string(*part) + (whole ? " of " + std::to_string(*whole) : " of a number learnt after connecting");
  return text + (guessed && who.world_size > 1 ? " (a guess, confirmed after connecting)" : "");
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
inline std::string to_string(const ProcessIdentity& who) {
  std::string line = "identity from " + who.source_text() + ": rank " + std::to_string(who.rank) + " of " +
                     std::to_string(who.world_size);
  line += ", " + detail::part_of_whole(who, "local rank", who.local_rank, who.local_world_size,
                                       who.is_provisional("local_rank") || who.is_provisional("local_world_size"));
  line += ", " + detail::part_of_whole(who, "node", who.node_rank, who.node_count,
                                       who.is_provisional("node_rank") || who.is_provisional("node_count"));
  constexpr std::size_t longest_name = 253;  // DNS has no longer ones
  const std::string address = excerpt(who.master_addr.value_or("an address not known yet"), longest_name);
  const bool brackets = address.find(':') != std::string::npos && address.front() != '[';
  line += ", store at " + (brackets ? "[" + address + "]" : address);
  line += who.master_port ? ":" + std::to_string(*who.master_port) : "";
  line += who.is_provisional("master_addr") ? " (a guess)" : "";
  line += who.attempt > 0 ? ", attempt " + std::to_string(who.attempt) : "";
  line += who.ignored.empty() ? "" : "; ignored: " + detail::joined(who.ignored);
  for (const std::string& warning : who.warnings) {
    line += "; " + warning;
  }
  return line;
}

}  // namespace DTRAIN_NAMESPACE::identity
