#pragma once
/// @file
/// Output relay: passes one stream of one worker to the launcher's console, line by line.

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/launch/output/console.hpp"
#include "dtrain/launch/output/line_fold.hpp"
#include "dtrain/launch/output/log_file.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Keeps the last `max_lines` lines, each truncated to `max_line_bytes`.
class Tail {
 public:
  static constexpr std::size_t max_lines = 20;
  static constexpr std::size_t max_line_bytes = 512;

  void push(std::string_view line) {
    if (lines_.size() == max_lines) {
      lines_.erase(lines_.begin());
    }
    lines_.push_back(std::string(line.substr(0, max_line_bytes)));
    if (line.size() > max_line_bytes) {
      lines_.back() += "...";
    }
  }

  bool empty() const noexcept { return lines_.empty(); }
  const std::vector<std::string>& lines() const noexcept { return lines_; }

 private:
  std::vector<std::string> lines_;
};

/// Reads a pipe to its end. Lifetime: relay, console and folded console outlive the task of run(). Threads: the loop's.
class OutputRelay {
 public:
  /// @param is_live whether the console shows an unfinished line (a prompt, a progress bar): on a terminal while the
  /// line grows, elsewhere 100 ms after its last byte, or after the first byte of a progress bar, which goes on
  /// @param folded receives the lines and passes them to the console; null: the console receives them directly
  OutputRelay(async::EventLoop& loop, Descriptor pipe, Console& console, int rank, bool is_live, LogFile log,
              FoldedConsole* folded = nullptr)
      : loop_(&loop),
        pipe_(std::move(pipe)),
        console_(&console),
        folded_(folded),
        rank_(rank),
        prefix_(format_text("[{}] ", {rank})),
        is_live_(is_live && console.is_terminal()),
        shows_parts_(is_live && !console.is_terminal()),
        log_(std::move(log)) {
    const int flags = ::fcntl(pipe_.get(), F_GETFL);
    if (flags < 0 || ::fcntl(pipe_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
      throw_errno("preparing the pipe of a worker's output");
    }
  }
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  /// Reads until the last writer has closed the pipe.
  async::Task<void> run() {
    std::array<char, std::size_t{16} << 10> buffer;
    while (pipe_) {
      co_await console_->room(Deadline::unbounded("a slow consumer slows the workers"));
      const Deadline until =
          part_due_ ? Deadline::at(*part_due_) : Deadline::unbounded("the worker ends and closes the pipe");
      const async::WakeReason ready = co_await loop_->readable(pipe_.get(), until);
      if (ready == async::WakeReason::timed_out && !has_input(pipe_.get())) {
        show_part();
        continue;
      }
      const ssize_t count = ::read(pipe_.get(), buffer.data(), buffer.size());
      if (count > 0) {
        take(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
      } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
        finish();
      }
    }
  }

  /// Whether the pipe is closed, or is empty although a process still holds it open.
  bool is_drained() const noexcept { return !pipe_ || !has_input(pipe_.get()); }

  /// Prints the last line, which has no newline, and closes the pipe. @pre the task of run() has ended or is cancelled
  void finish() {
    show_live("");
    splitter_.finish([this](std::string_view line) { emit(line); });
    pipe_.reset();
  }

  const Tail& tail() const noexcept { return tail_; }

 private:
  /// How long the console waits for the rest of a line.
  static constexpr std::chrono::milliseconds part_delay{100};

  void take(std::string_view bytes) {
    static_cast<void>(log_.write(bytes));  // on_lost reports errors
    show_live("");
    splitter_.feed(bytes, [this](std::string_view line) { emit(line); });
    if (is_live_) {
      const std::string_view text = visible_part(splitter_.partial());
      show_live(text.empty() ? std::string() : prefix_ + std::string(text));
    }
    if (splitter_.partial().size() <= shown_) {
      part_due_.reset();
    } else if (shows_parts_ && !(part_due_ && contains_return(splitter_.partial()))) {
      part_due_ = Deadline::Clock::now() + part_delay;
    }
  }

  static bool contains_return(std::string_view text) noexcept { return text.find('\r') != text.npos; }

  /// Writes the unfinished line, or what has been added to it since.
  void show_part() {
    part_due_.reset();
    if (folded_ != nullptr) {
      folded_->flush(rank_);
    }
    const std::string_view partial = splitter_.partial();
    console_->part(this, prefix_, prefixed_after_returns(partial.substr(shown_), prefix_, false));
    shown_ = partial.size();
  }

  void emit(std::string_view line) {
    if (const std::size_t shown = std::exchange(shown_, 0); shown > 0) {
      console_->end_part(this, prefix_, prefixed_after_returns(line.substr(shown), prefix_, true));
    } else if (folded_ != nullptr) {
      folded_->line(rank_, line);
    } else {
      console_->line(prefix_, line);
    }
    tail_.push(visible_part(line));
  }

  void show_live(const std::string& text) {
    if (has_live_line_ || !text.empty()) {
      console_->live_line(text);
      has_live_line_ = !text.empty();
    }
  }

  async::EventLoop* loop_;
  Descriptor pipe_;
  Console* console_;
  FoldedConsole* folded_;
  int rank_;
  std::string prefix_;
  bool is_live_;
  bool shows_parts_;
  std::size_t shown_ = 0;  ///< bytes of the unfinished line that the console has
  std::optional<Deadline::Clock::time_point> part_due_;
  bool has_live_line_ = false;
  LogFile log_;
  LineSplitter splitter_;
  Tail tail_;
};

}  // namespace DTRAIN_NAMESPACE::launch
