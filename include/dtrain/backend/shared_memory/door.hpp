#pragma once
/// @file
/// What rank 0 of a channel says in the store: where the other ranks find it, or why they do not.

#include <algorithm>
#include <string>
#include <string_view>

#include "dtrain/backend/shared_memory/message.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/printable.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// "open NAME TOKEN", or "error SENTENCE".
struct Door {
  std::string name;   ///< of its Unix socket
  std::string token;  ///< which strangers do not know

  std::string to_text() const { return "open " + name + " " + token; }

  static std::string error_text(int job_rank, const Error& error) {
    return "error rank " + std::to_string(job_rank) + " could not: " + error.what();
  }

  /// @throws Error (job_failed) where it is an error, or no door
  static Door from(const std::string& text, const std::string& channel) {
    std::string_view rest = text;
    const auto word = [&rest] {
      const std::string_view found = rest.substr(0, rest.find(' '));
      rest.remove_prefix(std::min(found.size() + 1, rest.size()));
      return std::string(found);
    };
    const bool is_open = word() == "open";
    Door door;
    if (is_open) {
      door.name = word();
      door.token = word();
    }
    if (!is_open || door.token.empty() || door.token.size() > Message{}.token.size() || !rest.empty()) {
      throw Error(Errc::job_failed, "opening channel '" + channel +
                                        "': " + (is_open ? "rank 0 said '" + printable(text) + "'" : printable(rest)));
    }
    return door;
  }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
