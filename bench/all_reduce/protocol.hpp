#pragma once
/// @file
/// What the benchmark asks of a rank, whatever system it belongs to: lines of words over a Unix socket. A rank that
/// waits for the next line leaves its core to the other systems.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

/// `samples` times: fill `buffers` buffers of `bytes` bytes, meet the other ranks, reduce one buffer after the other
/// and check all of them.
struct Request {
  /// bound, foreign or limit-KERNEL; a peer has only its own
  std::string memory = "own";
  std::string dtype = "f32";
  std::size_t bytes = 0;
  int buffers = 1;
  int warm_ups = 0;  ///< samples before those that count
  int samples = 1;

  std::string line() const {
    std::ostringstream text;
    text << memory << ' ' << dtype << ' ' << bytes << ' ' << buffers << ' ' << warm_ups << ' ' << samples << '\n';
    return text.str();
  }
};

/// From the first reduction of a sample to the end of the last, by the clock that all processes of a host share.
struct Interval {
  std::int64_t begin = 0;  ///< nanoseconds
  std::int64_t end = 0;
};

inline std::int64_t now_nanoseconds() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// A rank's end of the socket.
class RequestSource {
 public:
  /// @param path "@NAME": an abstract socket's name
  RequestSource(const char* path, int rank) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::size_t length = std::strlen(path);
    if (length >= sizeof address.sun_path) {
      throw std::runtime_error("the name of the benchmark's socket is too long");
    }
    std::memcpy(address.sun_path, path, length);
    address.sun_path[0] = 0;
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
    if (socket < 0 || ::connect(socket, reinterpret_cast<const sockaddr*>(&address), size) != 0) {
      throw std::runtime_error("cannot reach the benchmark's socket");
    }
    socket_ = socket;
    lines_ = ::fdopen(socket, "r");
    answer("rank " + std::to_string(rank));
  }
  RequestSource(const RequestSource&) = delete;
  RequestSource& operator=(const RequestSource&) = delete;
  ~RequestSource() { std::fclose(lines_); }

  /// Blocking: until the benchmark wants something. @returns false where it wants nothing more
  bool next(Request& request) {
    char line[256];
    if (std::fgets(line, sizeof line, lines_) == nullptr) {
      return false;
    }
    std::istringstream words(line);
    words >> request.memory >> request.dtype >> request.bytes >> request.buffers >> request.warm_ups >> request.samples;
    return !words.fail();
  }

  void answer(const std::string& line) {
    const std::string text = line + "\n";
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t count = ::send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) {
        throw std::runtime_error("the benchmark has gone");
      }
      sent += static_cast<std::size_t>(count);
    }
  }

  void answer(const std::vector<Interval>& intervals) {
    std::ostringstream text;
    text << "times";
    for (const Interval& interval : intervals) {
      text << ' ' << interval.begin << ' ' << interval.end;
    }
    answer(text.str());
  }

 private:
  int socket_ = -1;
  std::FILE* lines_ = nullptr;  ///< owns the socket
};

}  // namespace bench
