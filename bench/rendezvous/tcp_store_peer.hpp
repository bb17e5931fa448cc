#pragma once
/// @file
/// PyTorch's TCPStore, which does what a rank's first store operations do.

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "bench/command.hpp"
#include "bench/peer_python.hpp"

namespace bench {

/// Whether there is one, and its times.
class TcpStorePeer {
 public:
  bool present() const noexcept { return python_.present(); }
  const std::string& looked_in() const noexcept { return python_.looked_in(); }

  struct Times {
    std::string version;
    std::vector<double> seconds;
  };

  /// @throws Error where it fails
  Times time(int clients, int processes, int samples) const {
    const CommandOutput output =
        run_command({python_.path(), "-B", DTRAIN_BENCH_DIR "/peers/tcp_store.py", std::to_string(clients),
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
  PeerPython python_{"from torch.distributed import TCPStore"};
};

}  // namespace bench
