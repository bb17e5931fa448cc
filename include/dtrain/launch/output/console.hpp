#pragma once
/// @file
/// TerminalOutput: a launcher's stdout and stderr. Console: writes one of them by whole lines (LineSplitter), without
/// blocking.

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/async/events.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/launch/output/standard_stream.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Pure: the lines depend on the bytes alone, not on the sizes of the reads. A longer line becomes several lines of
/// exactly `max_line_bytes`, and the rest.
class LineSplitter {
 public:
  static constexpr std::size_t default_max_line_bytes = std::size_t{64} << 10;

  explicit LineSplitter(std::size_t max_line_bytes = default_max_line_bytes) : max_line_bytes_(max_line_bytes) {}

  /// Calls `emit(std::string_view)` for each line that is complete now, without its '\n'.
  template <class Emit>
  void feed(std::string_view bytes, Emit emit) {
    while (!bytes.empty()) {
      const std::size_t newline = bytes.find('\n');
      const std::size_t room = max_line_bytes_ - partial_.size();
      const std::size_t length = newline < bytes.size() ? newline : bytes.size();
      const std::size_t taken = length < room ? length : room;
      partial_.append(bytes.substr(0, taken));
      bytes.remove_prefix(taken);
      const bool whole = !bytes.empty() && bytes.front() == '\n';
      if (whole) {
        bytes.remove_prefix(1);
      }
      // A line of maximal length waits for the next byte: a '\n' there ends this line, and not an empty one.
      if (whole || !bytes.empty()) {
        emit(std::string_view(partial_));
        partial_.clear();
      }
    }
  }

  /// At the end of the stream: emits a last line that has no '\n'.
  template <class Emit>
  void finish(Emit emit) {
    if (!partial_.empty()) {
      emit(std::string_view(partial_));
      partial_.clear();
    }
  }

  /// The line that is not complete yet.
  std::string_view partial() const noexcept { return partial_; }

 private:
  std::size_t max_line_bytes_;
  std::string partial_;
};

/// The text with `prefix` after each '\r': where a progress bar begins to draw again, its prefix stays in front of it.
/// @param ends_line whether the line ends after the text: a '\r' there ("\r\n") draws nothing again
inline std::string prefixed_after_returns(std::string_view text, std::string_view prefix, bool ends_line) {
  std::string prefixed;
  for (std::size_t i = 0; i < text.size(); ++i) {
    prefixed += text[i];
    if (text[i] == '\r' && !(ends_line && i + 1 == text.size())) {
      prefixed += prefix;
    }
  }
  return prefixed;
}

/// The text of a line after the last '\r' that is followed by another character, as a terminal shows it. Therefore a
/// progress bar that a worker drew a hundred times is one line.
inline std::string_view visible_part(std::string_view line) noexcept {
  while (!line.empty() && line.back() == '\r') {
    line.remove_suffix(1);
  }
  const std::size_t back = line.rfind('\r');
  return back == std::string_view::npos ? line : line.substr(back + 1);
}

/// A bounded queue in front of a descriptor.
///  - One write has as many lines as a pipe accepts atomically (PIPE_BUF). Therefore lines of other processes on the
///    same pipe do not split them.
///  - Producers wait for room() before they add output. Therefore a slow consumer slows the workers, and no output is
///    lost.
///  - After a write error (EPIPE, a full disk) the console is broken, and drops all further output.
///  - On a terminal, one line may be live: the unfinished line of a worker, redrawn below all other output.
///  - Elsewhere one line may be open: its part is written, and the rest follows unless other output comes first.
/// Lifetime: outlives the task of write_out(). Threads: the loop's.
class Console {
 public:
  Console(async::EventLoop& loop, int descriptor, bool is_terminal)
      : loop_(&loop),
        descriptor_(descriptor),
        is_terminal_(is_terminal),
        can_wait_(can_be_waited_for(descriptor)),
        changed_(loop),
        room_(loop) {
    room_.set();
  }
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  bool is_terminal() const noexcept { return is_terminal_; }
  bool broken() const noexcept { return broken_; }

  /// The handler is called once, with the errno of the write that failed.
  void on_broken(std::function<void(int error)> handler) { on_broken_ = std::move(handler); }

  bool empty() const noexcept { return pending_.size() == written_; }

  /// Number of bytes that the consumer has accepted; shows whether it makes progress.
  std::uint64_t taken_bytes() const noexcept { return taken_bytes_; }

  /// Adds `prefix` + `text` + '\n'.
  void line(std::string_view prefix, std::string_view text) {
    const std::string live = live_;
    erase_live();
    close_part();
    add(prefix);
    add(is_terminal_ ? visible_part(text) : text);
    add("\n");
    draw_live(live);
  }

  /// Adds a part of a line that has no end yet, with `prefix` unless it continues the part that its owner added last.
  /// @pre not a terminal
  void part(const void* owner, std::string_view prefix, std::string_view text) {
    if (open_ != owner) {
      close_part();
      add(prefix);
      open_ = owner;
    }
    add(text);
  }

  /// Adds the rest of a line of which part() has written the beginning. If other output came in between, which has
  /// ended the line, the rest is a line with `prefix`. @pre not a terminal
  void end_part(const void* owner, std::string_view prefix, std::string_view rest) {
    if (open_ == owner) {
      add(rest);
      close_part();
    } else if (!rest.empty()) {
      line(prefix, rest);
    }
  }

  /// Makes `text` the live line; an empty text removes it. Skips the update if the terminal is slow.
  void live_line(const std::string& text) {
    const bool keeps_up = pending_.size() - written_ < PIPE_BUF;
    if (!is_terminal_ || text == live_ || (!text.empty() && !keeps_up)) {
      return;
    }
    erase_live();
    draw_live(text);
  }

  /// `co_await console.room(deadline)` waits until the queue has room for more output, at most until the deadline.
  async::ManualResetEvent::Awaiter room(Deadline deadline) noexcept { return room_.wait(deadline); }

  /// Writes added output; a task that never ends.
  async::Task<void> write_out() {
    for (;;) {
      if (empty()) {
        co_await changed_.wait(Deadline::unbounded("the task is destroyed with the console"));
        changed_.reset();
        continue;
      }
      if (can_wait_ && !broken_) {
        co_await loop_->writable(descriptor_, Deadline::unbounded("the task is destroyed with the console"));
      }
      const bool busy = !write_some();
      if (busy || !can_wait_) {
        co_await loop_->sleep_for(std::chrono::milliseconds(busy ? 10 : 0));  // other tasks run
      }
    }
  }

 private:
  static constexpr std::size_t high_water_bytes = std::size_t{256} << 10;

  void add(std::string_view bytes) {
    if (broken_) {
      return;
    }
    pending_.append(bytes);
    changed_.set();
    if (pending_.size() - written_ > high_water_bytes) {
      room_.reset();
    }
  }

  void erase_live() {
    if (!live_.empty()) {
      add("\r\x1b[K");
      live_.clear();
    }
  }

  void close_part() {
    if (open_ != nullptr) {
      add("\n");
      open_ = nullptr;
    }
  }

  void draw_live(const std::string& text) {
    add(text);
    live_ = text;
  }

  /// Bytes of the next write: as many whole lines as fit into PIPE_BUF, or PIPE_BUF bytes of a longer line.
  std::size_t next_length() const noexcept {
    const std::string_view rest = std::string_view(pending_).substr(written_);
    if (rest.size() <= PIPE_BUF || !can_wait_) {
      return rest.size();
    }
    const std::size_t newline = rest.rfind('\n', PIPE_BUF - 1);
    return newline == std::string_view::npos ? std::size_t{PIPE_BUF} : newline + 1;
  }

  /// Writes once. @returns false if the descriptor would have blocked. It polls again, because the console of the other
  /// stream may have filled the same pipe since this one was resumed.
  bool write_some() {
    int error = 0;
    bool would_block = can_wait_ && !broken_ && !takes_output(descriptor_);
    if (!broken_ && !would_block) {
      const ssize_t count = ::write(descriptor_, pending_.data() + written_, next_length());
      if (count >= 0) {
        written_ += static_cast<std::size_t>(count);
        taken_bytes_ += static_cast<std::uint64_t>(count);
      } else {
        would_block = errno == EAGAIN;
        error = errno == EINTR || errno == EAGAIN ? 0 : errno;
        broken_ = error != 0;
      }
    }
    if (broken_ || empty()) {
      pending_.clear();
      written_ = 0;
    } else if (written_ > high_water_bytes) {
      pending_.erase(0, written_);
      written_ = 0;
    }
    if (broken_ || pending_.size() - written_ <= high_water_bytes / 2) {
      room_.set();
    }
    if (error != 0 && on_broken_) {
      on_broken_(error);
    }
    return !would_block;
  }

  async::EventLoop* loop_;
  int descriptor_;
  bool is_terminal_;
  bool can_wait_;
  bool broken_ = false;
  std::function<void(int)> on_broken_;
  std::string pending_;
  std::size_t written_ = 0;  ///< bytes of pending_ that are written
  std::uint64_t taken_bytes_ = 0;
  std::string live_;
  const void* open_ = nullptr;  ///< owner of the part that ends the output; null if a line end does
  async::ManualResetEvent changed_;
  async::ManualResetEvent room_;
};

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
