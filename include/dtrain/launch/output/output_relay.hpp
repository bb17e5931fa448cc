#pragma once
/// @file
/// OutputRelay: passes a worker's stream to the launcher's Console and a LogFile. LineFold, FoldedConsole: one line for
/// several ranks' equal messages.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "dtrain/async/events.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/launch/output/console.hpp"
#include "dtrain/launch/shutdown_schedule.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// A line that begins with "dtrain: " is held until every rank has printed it, at most for `window`. If rank 3 prints
/// "dtrain: rank 3: TEXT", "rank 3: " does not count as a difference, and is not in the folded line.
/// - Other lines are emitted at once, after held lines that the same rank printed before.
/// - The lines of a rank are emitted in their order.
/// Pure. Bounded: holds at most `most_held` lines of at most `longest_held` bytes.
class LineFold {
 public:
  using Clock = ShutdownSchedule::Clock;

  /// Longer than the shutdown of a failed job takes, so that the messages of all its workers are one line.
  static constexpr std::chrono::milliseconds window =
      ShutdownSchedule::exit_grace + ShutdownSchedule::term_grace + std::chrono::milliseconds(200);
  static constexpr std::size_t most_held = 64;
  static constexpr std::size_t longest_held = 4096;

  /// @param ranks number of ranks that may print the same line; with 1, no line is held
  /// @param emit prints a line: "[3] " and its text
  LineFold(int ranks, std::function<void(std::string_view prefix, std::string_view text)> emit)
      : ranks_(static_cast<std::size_t>(std::max(1, ranks))), emit_(std::move(emit)) {}

  /// A rank's line, without its '\n'.
  void take(int rank, std::string_view line, Clock::time_point now) {
    const std::size_t last = held_with(rank);  // one past the last held line of this rank
    if (ranks_ == 1 || line.substr(0, own.size()) != own || line.size() > longest_held) {
      show(last);
      emit_(prefix_of({rank}), line);
      return;
    }
    std::string_view text = line.substr(own.size());
    const std::string name = rank_name(rank);
    const bool is_named = text.substr(0, name.size()) == name;
    text.remove_prefix(is_named ? name.size() : 0);
    std::size_t at = last;
    while (at < held_.size() && (held_[at].is_named != is_named || held_[at].text != text)) {
      ++at;
    }
    if (at == held_.size()) {
      show(at < most_held ? 0 : 1);
      at = held_.size();
      held_.push_back({std::string(text), is_named, {}, now + window});
    }
    std::vector<int>& ranks = held_[at].ranks;
    ranks.insert(std::upper_bound(ranks.begin(), ranks.end(), rank), rank);
    while (!held_.empty() && held_.front().ranks.size() == ranks_) {
      show(1);
    }
  }

  /// Emits lines that have been held for `window`.
  void expire(Clock::time_point now) {
    while (!held_.empty() && held_.front().until <= now) {
      show(1);
    }
  }

  /// Emits the lines that are held for this rank, and those before them.
  void flush(int rank) { show(held_with(rank)); }

  /// Emits all held lines.
  void flush() { show(held_.size()); }

  /// The time at which the next held line expires.
  std::optional<Clock::time_point> next() const {
    return held_.empty() ? std::nullopt : std::optional(held_.front().until);
  }

 private:
  struct Held {
    std::string text;       ///< the text without "dtrain: " and "rank R: "
    bool is_named = false;  ///< each rank R prints "rank R: " before the text
    std::vector<int> ranks;
    Clock::time_point until;
  };

  static constexpr std::string_view own = "dtrain: ";

  DTRAIN_NOT_INLINED static std::string rank_name(int rank) { return format_text("rank {}: ", {rank}); }

  DTRAIN_NOT_INLINED static std::string prefix_of(const std::vector<int>& ranks) {
    return format_text("[{}] ", {joined(rendezvous::rank_ranges(ranks), ",")});
  }

  std::size_t held_with(int rank) const {
    std::size_t last = held_.size();
    while (last > 0 && !std::binary_search(held_[last - 1].ranks.begin(), held_[last - 1].ranks.end(), rank)) {
      --last;
    }
    return last;
  }

  DTRAIN_NOT_INLINED void show(std::size_t count) {
    for (std::size_t at = 0; at < count; ++at) {
      const Held& each = held_[at];
      const std::string name = each.is_named && each.ranks.size() == 1 ? rank_name(each.ranks.front()) : std::string();
      emit_(prefix_of(each.ranks), format_text("{}{}{}", {own, name, each.text}));
    }
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(count));
  }

  std::size_t ranks_;
  std::function<void(std::string_view, std::string_view)> emit_;
  std::vector<Held> held_;  ///< held lines in the order of their first prints
};

/// Lifetime: the loop and the console outlive it. The destructor prints held lines. Threads: the loop's.
class FoldedConsole {
 public:
  /// @param ranks number of ranks that may print the same line; with 1, no line is folded
  FoldedConsole(async::EventLoop& loop, Console& console, int ranks)
      : fold_(ranks, [&console](std::string_view prefix, std::string_view text) { console.line(prefix, text); }),
        changed_(loop),
        showing_(loop.spawn(show_in_time())) {}
  FoldedConsole(const FoldedConsole&) = delete;
  FoldedConsole& operator=(const FoldedConsole&) = delete;
  ~FoldedConsole() {
    try {
      flush();
    } catch (...) {  // out of memory: the lines are lost
    }
  }

  /// A rank's line, without its '\n'.
  void line(int rank, std::string_view text) {
    fold_.take(rank, text, LineFold::Clock::now());
    changed_.set();
  }

  /// Prints the lines that are held for this rank, before other output of it is printed.
  void flush(int rank) { fold_.flush(rank); }

  /// Prints held lines.
  void flush() { fold_.flush(); }

 private:
  async::Task<void> show_in_time() {
    for (;;) {
      const auto longest = LineFold::Clock::now() + std::chrono::hours(1);
      co_await changed_.wait(Deadline::at(fold_.next().value_or(longest)));
      fold_.expire(LineFold::Clock::now());
    }
  }

  LineFold fold_;
  async::AutoResetEvent changed_;
  async::TaskHandle showing_;  ///< last: destroyed before the members that it uses
};

/// Creates a directory and its parents. @throws Error (posix)
inline void make_directories(const std::string& path) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    struct ::stat status {};
    const bool there = ::mkdir(part.c_str(), 0777) == 0 ||
                       (errno == EEXIST && ::stat(part.c_str(), &status) == 0 && S_ISDIR(status.st_mode));
    if (!there) {
      throw_errno("making the directory {} for --log-dir", {part}, "give a directory that can be written");
    }
    if (end == std::string::npos) {
      return;
    }
  }
}

/// Has the bytes as the worker wrote them, without prefixes. An existing file is truncated when it is opened.
class LogFile {
 public:
  /// Writes no file.
  LogFile() noexcept = default;

  /// @param appends to what is in the file, which is emptied else
  /// @param on_lost called once, at the first write error: "writing d/rank-0.stdout: No space ..."
  /// Blocking: no. @throws Error (posix), also if `path` is a pipe that no process reads
  explicit LogFile(const std::string& path, std::function<void(const std::string& what)> on_lost = {},
                   bool appends = false)
      : path_(path),
        on_lost_(std::move(on_lost)),
        file_(::open(path.c_str(), O_WRONLY | O_CREAT | (appends ? 0 : O_TRUNC) | O_APPEND | O_CLOEXEC | O_NONBLOCK,
                     0666)) {
    if (!file_) {
      throw_errno("opening {} for --log-dir", {path}, "give a directory that can be written");
    }
  }

  /// Appends. @returns false at the first write error; after it the file is closed, and further bytes are dropped
  bool write(std::string_view bytes) {
    while (file_ && !bytes.empty()) {
      const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
      if (count >= 0) {
        bytes.remove_prefix(static_cast<std::size_t>(count));
      } else if (errno != EINTR) {
        const std::string reason = std::generic_category().message(errno);
        file_.reset();
        if (on_lost_) {
          on_lost_(format_text("writing {}: {}", {path_, reason}));
        }
        return false;
      }
    }
    return true;
  }

 private:
  std::string path_;
  std::function<void(const std::string&)> on_lost_;
  Descriptor file_;
};

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

/// @throws Error (posix)
inline void make_nonblocking(const Descriptor& pipe, const char* doing) {
  const int flags = ::fcntl(pipe.get(), F_GETFL);
  if (flags < 0 || ::fcntl(pipe.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    throw_errno(doing);
  }
}

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
    make_nonblocking(pipe_, "preparing the pipe of a worker's output");
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
