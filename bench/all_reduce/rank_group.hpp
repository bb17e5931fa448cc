#pragma once
/// @file
/// The ranks of one system: started once, asked for one measurement after another.

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "bench/all_reduce/protocol.hpp"
#include "bench/child_process.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/descriptor.hpp"

namespace bench {

/// What a team says to a request.
struct Answer {
  std::vector<double> seconds;  ///< of one reduction, a value for each sample: the slowest rank's
  std::string missing;          ///< why there are none
};

/// How a system's ranks are started.
struct GroupCommand {
  std::vector<std::string> words;                                     ///< "{socket}" stands for the socket's name
  std::vector<std::pair<std::string, std::string>> environment = {};  ///< beside this program's own
};

/// Ends with its owner. Threads: made in a process that has one thread.
class RankGroup {
 public:
  /// Blocking: until all ranks have come. @param name of the system, for messages
  /// @throws Error (timeout, closed) where they do not
  RankGroup(std::string name, int ranks, GroupCommand command)
      : name_(std::move(name)), listener_(listen()), child_([&](const Channel&) { become(command); }) {
    const dtrain::Deadline deadline = dtrain::Deadline::after(std::chrono::seconds(60));
    std::vector<dtrain::Descriptor> callers;
    while (static_cast<int>(callers.size()) < ranks) {
      await(listener_.get(), deadline);
      callers.emplace_back(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!callers.back()) {
        throw dtrain::errno_error("accepting a rank of " + name_);
      }
    }
    for (dtrain::Descriptor& caller : callers) {
      ranks_.push_back({std::move(caller), ""});
    }
    for (Rank& rank : ranks_) {
      read_line(rank, deadline);
    }
  }
  RankGroup(RankGroup&&) = delete;
  /// Blocking: until its ranks have seen their sockets closed and have ended, 10 s at most.
  ~RankGroup() {
    ranks_.clear();
    child_.await_end(dtrain::Deadline::after(std::chrono::seconds(10)));
  }

  /// What its ranks are told to do and how long it took. Blocking: until they have. @throws Error where it goes wrong
  Answer ask(const Request& request) {
    const std::string line = request.line();
    for (const Rank& rank : ranks_) {
      if (::send(rank.socket.get(), line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size())) {
        throw dtrain::errno_error("asking a rank of " + name_);
      }
    }
    const dtrain::Deadline deadline = dtrain::Deadline::after(std::chrono::seconds(120));
    std::vector<Interval> whole(static_cast<std::size_t>(request.samples));
    Answer answer;
    for (Rank& rank : ranks_) {
      std::istringstream words(read_line(rank, deadline));
      std::string kind;
      words >> kind;
      if (kind != "times") {
        std::getline(words >> std::ws, answer.missing);
        continue;
      }
      for (Interval& interval : whole) {
        Interval own;
        words >> own.begin >> own.end;
        interval.begin = interval.begin == 0 ? own.begin : std::min(interval.begin, own.begin);
        interval.end = std::max(interval.end, own.end);
      }
      if (words.fail()) {
        throw dtrain::Error(dtrain::Errc::protocol, "a rank of " + name_ + " gave too few times");
      }
    }
    for (const Interval& interval : whole) {
      answer.seconds.push_back(static_cast<double>(interval.end - interval.begin) * 1e-9 / request.buffers);
    }
    if (!answer.missing.empty()) {
      answer.seconds.clear();
    }
    return answer;
  }

  const std::string& name() const noexcept { return name_; }

 private:
  struct Rank {
    dtrain::Descriptor socket;
    std::string read;  ///< and not yet a line
  };

  dtrain::Descriptor listen() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    dtrain::Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    // A name that the system chooses.
    socklen_t size = sizeof address;
    if (!socket || ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address.sun_family) != 0 ||
        ::listen(socket.get(), 64) != 0 ||
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw dtrain::errno_error("listening for the ranks of " + name_);
    }
    socket_name_ = "@" + std::string(address.sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1);
    return socket;
  }

  /// In the child: the command takes its place.
  [[noreturn]] void become(GroupCommand& command) const {
    std::vector<char*> argv;
    for (std::string& word : command.words) {
      if (word == "{socket}") {
        word = socket_name_;
      }
      argv.push_back(word.data());
    }
    argv.push_back(nullptr);
    for (const auto& [variable, value] : command.environment) {
      ::setenv(variable.c_str(), value.c_str(), 1);
    }
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::dup2(null, STDIN_FILENO);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::execvp(argv.front(), argv.data());
    throw dtrain::errno_error("starting " + command.words.front());
  }

  void await(int descriptor, dtrain::Deadline deadline) const {
    for (;;) {
      pollfd readable{descriptor, POLLIN, 0};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
      const int ready = ::poll(&readable, 1, static_cast<int>(left));
      if (ready > 0) {
        return;
      }
      if (ready == 0) {
        throw dtrain::Error(dtrain::Errc::timeout, "waiting for the ranks of " + name_ + ": the deadline passed");
      }
      if (errno != EINTR) {
        throw dtrain::errno_error("waiting for the ranks of " + name_);
      }
    }
  }

  std::string read_line(Rank& rank, dtrain::Deadline deadline) const {
    for (;;) {
      const std::size_t end = rank.read.find('\n');
      if (end != std::string::npos) {
        std::string line = rank.read.substr(0, end);
        rank.read.erase(0, end + 1);
        return line;
      }
      await(rank.socket.get(), deadline);
      char buffer[4096];
      const ssize_t count = ::recv(rank.socket.get(), buffer, sizeof buffer, 0);
      if (count <= 0) {
        throw dtrain::Error(dtrain::Errc::closed, "a rank of " + name_ + " has ended before its time");
      }
      rank.read.append(buffer, static_cast<std::size_t>(count));
    }
  }

  std::string name_;
  std::string socket_name_;
  dtrain::Descriptor listener_;
  ChildProcess child_;
  std::vector<Rank> ranks_;
};

}  // namespace bench
