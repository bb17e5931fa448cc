#pragma once
/// @file
/// The Python that the peers' programs run in.

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/command.hpp"

namespace bench {

/// DTRAIN_PEER_PYTHON, or the first of the usual ones that has what is needed.
class PeerPython {
 public:
  /// @param imports the statement that must succeed
  explicit PeerPython(const std::string& imports) {
    const char* set = std::getenv("DTRAIN_PEER_PYTHON");
    std::vector<std::string> candidates{"python3", "/usr/bin/python3"};
    if (set != nullptr && *set != 0) {
      candidates = {set};
    }
    for (const std::string& candidate : candidates) {
      const auto soon = dtrain::Deadline::after(std::chrono::seconds(60));
      if (run_command({candidate, "-c", imports}, soon, true).succeeded) {
        path_ = candidate;
        return;
      }
      looked_in_ += (looked_in_.empty() ? "" : ", ") + candidate;
    }
  }

  bool present() const noexcept { return !path_.empty(); }
  const std::string& path() const noexcept { return path_; }
  const std::string& looked_in() const noexcept { return looked_in_; }

 private:
  std::string path_;
  std::string looked_in_;
};

}  // namespace bench
