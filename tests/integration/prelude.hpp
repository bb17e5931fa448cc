#pragma once
/// @file
/// The headers and names that most tests of integration/ use.

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <filesystem>
#include <sstream>

#include "support/ended.hpp"
#include "support/free_port.hpp"
#include "support/launch_probe.hpp"
#include "support/prelude.hpp"
#include "support/program.hpp"
#include "support/skip.hpp"
#include "support/summary_file.hpp"
#include "support/temporary_directory.hpp"

using support::contains;
using support::content;
using support::lines_of;
using support::new_mark;
using support::probe;
using support::Program;
using support::reaches_state;
using support::Result;
using support::SummaryFile;
using support::TemporaryDirectory;
using support::two_seconds;

namespace integration {

/// A port of this machine that something else listens on, as long as this lives.
struct TakenPort {
  TakenPort() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    REQUIRE(socket >= 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(socket, 1) == 0);
    REQUIRE(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    number = std::to_string(ntohs(address.sin_port));
  }
  ~TakenPort() { ::close(socket); }
  /// Makes it free for the program that is started next.
  void release() { ::close(std::exchange(socket, -1)); }
  int socket;
  std::string number;
};

}  // namespace integration
