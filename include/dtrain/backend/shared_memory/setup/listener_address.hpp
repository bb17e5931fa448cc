#pragma once
/// @file
/// ListenerAddress: the Unix socket of a channel's rank 0, or its error, as published in the store.

#include <algorithm>
#include <string>
#include <string_view>

#include "dtrain/backend/shared_memory/setup/setup_message.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/sanitize.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// "open NAME TOKEN", or "error SENTENCE".
struct ListenerAddress {
  std::string name;   ///< of its Unix socket
  std::string token;  ///< secret: processes outside the job do not know it

  std::string to_text() const { return "open " + name + " " + token; }

  static std::string error_text(int job_rank, const Error& error) {
    return "error rank " + std::to_string(job_rank) + " could not listen: " + error.what();
  }

  /// @throws Error (job_failed) if rank 0 published an error, or the text is malformed
  static ListenerAddress from(const std::string& text, const std::string& channel) {
    std::string_view rest = text;
    const auto word = [&rest] {
      const std::string_view found = rest.substr(0, rest.find(' '));
      rest.remove_prefix(std::min(found.size() + 1, rest.size()));
      return std::string(found);
    };
    const bool is_open = word() == "open";
    ListenerAddress listener;
    if (is_open) {
      listener.name = word();
      listener.token = word();
    }
    if (!is_open || listener.token.empty() || listener.token.size() > SetupMessage{}.token.size() || !rest.empty()) {
      throw Error(Errc::job_failed, "opening channel '" + channel + "': " +
                                        (is_open ? "rank 0 published '" + sanitize(text) + "'" : sanitize(rest)));
    }
    return listener;
  }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
