#pragma once
/// @file
/// PyTorch's TCPStore, which does what a rank's first store operations do.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "bench/command.hpp"

namespace bench {

/// Whether there is one, and its times.
class TcpStorePeer {
 public:
  TcpStorePeer() {
    const char* set = std::getenv("DTRAIN_PEER_PYTHON");
    std::vector<std::string> candidates{"python3", "/usr/bin/python3"};
    if (set != nullptr && *set != 0) {
      candidates = {set};
    }
    for (const std::string& candidate : candidates) {
      const auto soon = dtrain::Deadline::after(std::chrono::seconds(60));
      if (run_command({candidate, "-c", "from torch.distributed import TCPStore"}, soon, true).succeeded) {
        python_ = candidate;
        return;
      }
      looked_in_ += (looked_in_.empty() ? "" : ", ") + candidate;
    }
  }

  bool present() const noexcept { return !python_.empty(); }
  const std::string& looked_in() const noexcept { return looked_in_; }

  struct Times {
    std::string version;
    std::vector<double> seconds;
  };

  /// @throws Error where it fails
  Times time(int clients, int processes, int samples) const {
    const CommandOutput output =
        run_command({python_, "-B", DTRAIN_BENCH_DIR "/peers/tcp_store.py", std::to_string(clients),
                     std::to_string(processes), std::to_string(samples)},
                    dtrain::Deadline::after(std::chrono::seconds(240)));
    Times times;
    std::istringstream words(output.text);
    for (std::string name, value; words >> name >> value;) {
      if (name == "version") {
        times.version = value;
      } else if (name == "seconds") {
        times.seconds.push_back(std::strtod(value.c_str(), nullptr));
      }
    }
    if (!output.succeeded || times.seconds.size() != static_cast<std::size_t>(samples)) {
      throw dtrain::Error(dtrain::Errc::protocol, "TCPStore with " + std::to_string(clients) + " clients failed");
    }
    return times;
  }

 private:
  std::string python_;
  std::string looked_in_;
};

}  // namespace bench
