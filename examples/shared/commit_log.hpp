#pragma once
/// @file
/// A file with a line for each step that a worker of an elastic job has committed.

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "dtrain/core/error.hpp"
#include "json_number.hpp"

namespace shared {

/// Whether the program was started with --elastic: it decides which function run() gets.
inline bool wants_elastic(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--elastic") return true;
  }
  return false;
}

/// Threads: one.
class CommitLog {
 public:
  /// Appends to FILE.PROCESS; an empty `file` writes nothing. @throws dtrain::Error naming the file
  explicit CommitLog(const std::string& file) {
    if (file.empty()) return;
    path_ = file + '.' + std::to_string(::getpid());
    file_.reset(std::fopen(path_.c_str(), "ae"));
    if (!file_) fail();
  }

  bool is_wanted() const noexcept { return file_ != nullptr; }

  /// Writes the line as a whole, so that a killed worker leaves no half. @param loss of this rank's samples
  /// @throws dtrain::Error naming the file
  void add(std::uint64_t step, std::uint64_t attempt, int world_size, int rank, double loss,
           const std::string& digest) {
    const std::string line = "{\"step\": " + std::to_string(step) + ", \"attempt\": " + std::to_string(attempt) +
                             ", \"world_size\": " + std::to_string(world_size) + ", \"rank\": " + std::to_string(rank) +
                             ", \"loss\": " + json_number(loss) + ", \"digest\": \"" + digest + "\"}\n";
    if (std::fputs(line.c_str(), file_.get()) < 0 || std::fflush(file_.get()) != 0) fail();
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const noexcept { static_cast<void>(std::fclose(file)); }  // all lines are flushed
  };

  [[noreturn]] void fail() const {
    throw dtrain::Error(dtrain::Errc::usage, "--commit-log: writing " + path_ + " failed: " + std::strerror(errno) +
                                                 "; name a file in a folder that can be written");
  }

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace shared
