#pragma once
/// @file
/// Stdin forwarder: passes lines typed on the terminal of NodeLauncher to one worker.

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string_view>
#include <utility>

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// The worker reads a pipe, because SIGTTIN stops a worker in its own process group when it reads the terminal.
/// Lifetime: outlives the task of run(). Threads: the loop's.
class StdinForwarder {
 public:
  /// @param source a terminal's descriptor; the caller still owns it
  /// @param pipe the writing end; closed at the end of the source, or when the worker has closed the reading end
  StdinForwarder(async::EventLoop& loop, int source, Descriptor pipe)
      : loop_(&loop), source_(source), pipe_(std::move(pipe)) {
    const int flags = ::fcntl(pipe_.get(), F_GETFL);
    if (flags < 0 || ::fcntl(pipe_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
      throw_errno("preparing the pipe of a worker's input");
    }
  }
  StdinForwarder(const StdinForwarder&) = delete;
  StdinForwarder& operator=(const StdinForwarder&) = delete;

  /// Forwards until the pipe is closed.
  async::Task<void> run() {
    std::array<char, 4096> buffer;
    while (pipe_) {
      if (in_background()) {
        co_await loop_->sleep_for(std::chrono::milliseconds(500));  // the shell reads the terminal now
        continue;
      }
      const async::WakeReason ready = co_await loop_->readable(source_, Deadline::after(std::chrono::seconds(1)));
      if (ready == async::WakeReason::timed_out || in_background()) {
        continue;
      }
      const ssize_t count = ::read(source_, buffer.data(), buffer.size());
      const int error = count < 0 ? errno : 0;
      if (error == EINTR || error == EAGAIN) {
        co_await loop_->sleep_for(std::chrono::milliseconds(10));
      } else if (count <= 0) {
        pipe_.reset();
      } else {
        co_await write_all(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
      }
    }
  }

 private:
  bool in_background() const noexcept {
    const pid_t foreground = ::tcgetpgrp(source_);
    return foreground >= 0 && foreground != ::getpgrp();
  }

  async::Task<void> write_all(std::string_view bytes) {
    while (pipe_ && !bytes.empty()) {
      const ssize_t count = ::write(pipe_.get(), bytes.data(), bytes.size());
      const int error = count < 0 ? errno : 0;
      if (count >= 0) {
        bytes.remove_prefix(static_cast<std::size_t>(count));
      } else if (error == EAGAIN) {
        co_await loop_->writable(pipe_.get(), Deadline::unbounded("the worker reads, or ends and closes the pipe"));
      } else if (error != EINTR) {
        pipe_.reset();  // the worker has closed its stdin or ended
      }
    }
  }

  async::EventLoop* loop_;
  int source_;
  Descriptor pipe_;
};

}  // namespace DTRAIN_NAMESPACE::launch
