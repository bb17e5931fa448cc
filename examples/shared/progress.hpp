#pragma once
/// @file
/// How far a training is: a bar that redraws itself on a terminal, a few plain lines an epoch elsewhere.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace shared {

/// "29,508": the nearest integer, its digits in groups of three.
inline std::string grouped(double value) {
  std::string digits = std::to_string(static_cast<std::int64_t>(value + 0.5));
  for (std::size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

/// "12.3 s" is `fixed(12.34, 1) + " s"`.
inline std::string fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return text;
}

struct ProgressState {
  std::int64_t epoch = 0;  ///< counted from one
  std::int64_t epochs = 0;
  std::int64_t step = 0;  ///< done in this epoch
  std::int64_t steps = 0;
  double loss = 0;  ///< mean over the epoch so far, of this rank's samples
  double samples_per_second = 0;
};

/// "epoch 2/3 [##########----------] 118/235  loss 0.4312  29,508 samples/s"
inline std::string progress_text(const ProgressState& state) {
  constexpr std::int64_t width = 28;
  const std::int64_t filled = width * state.step / std::max<std::int64_t>(state.steps, 1);
  std::string text = "epoch " + std::to_string(state.epoch) + '/' + std::to_string(state.epochs) + " [";
  text.append(static_cast<std::size_t>(filled), '#').append(static_cast<std::size_t>(width - filled), '-');
  std::string step = std::to_string(state.step);
  const std::string steps = std::to_string(state.steps);
  step.insert(0, steps.size() - std::min(step.size(), steps.size()), ' ');
  return text + "] " + step + '/' + steps + "  loss " + fixed(state.loss, 4) + "  " +
         grouped(state.samples_per_second) + " samples/s";
}

/// Whether lines may be redrawn: stdout is a terminal, or a launcher that shows it on one says so.
inline bool stdout_is_terminal() {
  const char* told = std::getenv("DTRAIN_STDOUT_IS_TERMINAL");
  return told != nullptr ? std::string_view(told) == "1" : ::isatty(STDOUT_FILENO) == 1;
}

/// Draws on stdout for one rank; a disabled one draws nothing. A full or closed stdout is not an error of the training.
class Progress {
 public:
  Progress(bool enabled, bool terminal) noexcept : enabled_(enabled), terminal_(terminal) {}

  /// After each step. A terminal is redrawn at most ten times a second and at an epoch's end; elsewhere a line is
  /// printed when another quarter of the epoch is done.
  void update(const ProgressState& state) {
    if (!enabled_) return;
    const bool end = state.step == state.steps;
    if (terminal_) {
      const auto now = Clock::now();
      if (!end && now < next_draw_) return;
      next_draw_ = now + std::chrono::milliseconds(100);
      // The cursor waits at the line's start, so that whatever is printed next replaces the bar; an epoch's last stays.
      draw(progress_text(state) + (end ? "\x1b[K\n" : "\x1b[K\r"));
    } else if (4 * state.step / state.steps != 4 * (state.step - 1) / state.steps) {
      draw(progress_text(state) + '\n');
    }
  }

  void line(const std::string& text) {
    if (enabled_) draw(text + (terminal_ ? "\x1b[K\n" : "\n"));
  }

 private:
  using Clock = std::chrono::steady_clock;

  static void draw(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  bool enabled_;
  bool terminal_;
  Clock::time_point next_draw_{};
};

}  // namespace shared
