#pragma once
/// @file
/// Terminal output: the launcher's stdout and stderr. NodeLauncher owns it.

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string_view>

#include "dtrain/launch/output/console.hpp"
#include "dtrain/launch/output/standard_stream.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// If both are the same terminal, pipe or file, one console writes to it, so that a line on one does not break an
/// unfinished line on the other. A write error of stdout is reported on stderr. Lifetime: the loop outlives it.
/// Threads: the loop's.
class TerminalOutput {
 public:
  TerminalOutput(async::EventLoop& loop, int output, int error)
      : loop_(&loop),
        output_(loop, output, ::isatty(output) == 1),
        error_(loop, error, ::isatty(error) == 1),
        is_one_(is_same_file(output, error)),
        output_task_(loop.spawn(output_.write_out())),
        error_task_(loop.spawn(error_.write_out())) {
    if (!is_one_) {
      output_.on_broken([this, output](int reason) { error_.line("dtrain: ", lost_output("stdout", output, reason)); });
    }
  }

  Console& output() noexcept { return output_; }
  Console& error() noexcept { return is_one_ ? output_ : error_; }

  /// Ends when one of these is true:
  ///   - all output is written and `done()` is true
  ///   - the consumers have accepted no bytes for `timeout`
  ///   - `cancelled()` is true
  /// @returns whether all output is written and `done()` is true
  template <class Done, class Cancelled>
  async::Task<bool> flush(std::chrono::milliseconds timeout, Done done, Cancelled cancelled) {
    std::uint64_t taken = taken_bytes();
    Deadline deadline = Deadline::after(timeout);
    while (!(output_.empty() && error_.empty() && done()) && !deadline.passed() && !cancelled()) {
      co_await loop_->sleep_for(std::chrono::milliseconds(1));
      if (taken_bytes() != taken) {
        taken = taken_bytes();
        deadline = Deadline::after(timeout);
      }
    }
    co_return output_.empty() && error_.empty() && done();
  }

 private:
  /// Two terminals with one device number are one, also if they were opened by different names.
  static bool is_same_file(int a, int b) noexcept {
    struct ::stat first {};
    struct ::stat second {};
    if (::fstat(a, &first) != 0 || ::fstat(b, &second) != 0) {
      return false;
    }
    return ::isatty(a) == 1 ? ::isatty(b) == 1 && first.st_rdev == second.st_rdev
                            : first.st_dev == second.st_dev && first.st_ino == second.st_ino;
  }

  std::uint64_t taken_bytes() const noexcept { return output_.taken_bytes() + error_.taken_bytes(); }

  async::EventLoop* loop_;
  Console output_;
  Console error_;
  bool is_one_;
  async::TaskHandle output_task_;
  async::TaskHandle error_task_;
};

}  // namespace DTRAIN_NAMESPACE::launch
