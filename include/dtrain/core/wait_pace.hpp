#pragma once
/// @file
/// WaitPace: when a waiting thread spins, yields its core, and sleeps. HostLoad: whether threads wait for cores.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE {

/// Whether the host has more running threads than cores, by /proc/loadavg. Where that file is another host's or cannot
/// be read, the answer may be wrong, which costs time alone. Threads: any.
class HostLoad {
 public:
  using Clock = std::chrono::steady_clock;

  /// The process's own.
  static HostLoad& instance();

  /// Looks at most once in 2 ms (1.5 us); between looks, the last answer.
  bool exceeds_cores(Clock::time_point now) noexcept;

  /// The number of running threads in the text of /proc/loadavg ("0.20 0.18 0.12 1/80 11206": 1); 0 for another text.
  static int running_threads(std::string_view text) noexcept;

  HostLoad(const HostLoad&) = delete;
  HostLoad& operator=(const HostLoad&) = delete;

 private:
  HostLoad();
  ~HostLoad() = default;

  int file_;  ///< /proc/loadavg, open until the process ends, or -1
  int cores_;
  std::atomic<std::int64_t> next_look_{0};
  std::atomic<bool> exceeds_{false};
};

enum class WaitAction : std::uint8_t { spin, yield, sleep };

/// Processor time that a process may use while its threads wait.
struct WaitLimits {
  bool cores_suffice;  ///< each rank of the host has a core
  bool has_quota;      ///< a control group's quota is below the cores: what is used in waiting stops the job later
  int pauses = 200;    ///< looks before the first yield, where cores suffice

  /// The limits of so many ranks on a host that has so many cores for them. Reads some small files.
  static WaitLimits of_ranks(int ranks, int cores);
};

/// Decides what a thread that waits for a peer does next; the caller pauses and sleeps, yield() yields.
///
/// Pauses first, in case the peer runs on another core; then yields, in case it needs this one; then sleeps, because a
/// waiting thread may hold a core that the awaited rank wants. A wake-up costs 11 to 15 us, so where cores suffice
/// yields go on for 300 us; fewer if a yield was long (another thread wanted this core), if the host has more running
/// threads than cores, and under a quota. Threads: one.
class WaitPace {
 public:
  using Clock = HostLoad::Clock;

  explicit WaitPace(const WaitLimits& limits) noexcept
      : spins_(limits.cores_suffice ? limits.pauses : 5),
        yields_(limits.cores_suffice ? unlimited : 50),
        window_(limits.has_quota ? short_window : long_window) {}

  /// Call it before each further look at what is awaited.
  WaitAction next() noexcept {
    if (turn_ < spins_) {
      ++turn_;
      return WaitAction::spin;
    }
    return next_yield();
  }

  /// Yields the core, where next() says so.
  void yield() noexcept;

  /// Goes on with yields at once.
  void skip_spins() noexcept {
    if (turn_ < spins_) turn_ = spins_;
  }

  /// Something has moved.
  void reset() noexcept {
    turn_ = 0;
    was_long_ = false;
  }

 private:
  static constexpr int unlimited = 1 << 30;
  static constexpr std::chrono::microseconds short_window{20};
  static constexpr std::chrono::microseconds long_window{300};
  static constexpr std::chrono::microseconds longest_yield{30};

  WaitAction next_yield() noexcept;

  int turn_ = 0;
  int spins_;
  int yields_;
  std::chrono::microseconds window_;
  Clock::time_point began_{};  ///< the first yield
  Clock::time_point now_{};    ///< time of the last next() that did not spin
  bool was_long_ = false;      ///< whether the last yield was
};

}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <system_error>

#include "dtrain/core/process/control_groups.hpp"
#include "dtrain/core/process/core_count.hpp"
#include "dtrain/core/wait_time.hpp"

namespace DTRAIN_NAMESPACE {

DTRAIN_DEFINED HostLoad::HostLoad()
    : file_(::open("/proc/loadavg", O_RDONLY | O_CLOEXEC)),
      cores_(std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)))) {}

DTRAIN_DEFINED HostLoad& HostLoad::instance() {
  static HostLoad load;
  return load;
}

DTRAIN_DEFINED int HostLoad::running_threads(std::string_view text) noexcept {
  for (int field = 0; field < 3; ++field) {
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos) return 0;
    text.remove_prefix(space + 1);
  }
  int running = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), running);
  return error == std::errc{} && end != text.data() + text.size() && *end == '/' ? running : 0;
}

DTRAIN_DEFINED bool HostLoad::exceeds_cores(Clock::time_point now) noexcept {
  const std::int64_t ticks = now.time_since_epoch().count();
  if (ticks < next_look_.load(std::memory_order_relaxed)) {
    return exceeds_.load(std::memory_order_relaxed);
  }
  constexpr Clock::duration pause = std::chrono::milliseconds(2);
  next_look_.store(ticks + pause.count(), std::memory_order_relaxed);
  char text[64];
  const ssize_t bytes = file_ < 0 ? -1 : ::pread(file_, text, sizeof text, 0);
  const bool exceeds = bytes > 0 && running_threads(std::string_view(text, static_cast<std::size_t>(bytes))) > cores_;
  exceeds_.store(exceeds, std::memory_order_relaxed);
  return exceeds;
}

DTRAIN_DEFINED WaitLimits WaitLimits::of_ranks(int ranks, int cores) {
  const std::optional<int> quota = cpu_quota();
  return {cores >= ranks, quota && *quota < std::max(cores, cores_by_affinity())};
}

DTRAIN_DEFINED WaitAction WaitPace::next_yield() noexcept {
  if (was_long_) {
    return WaitAction::sleep;
  }
  now_ = Clock::now();
  if (turn_++ == spins_) {
    began_ = now_;
  }
  const Clock::duration waited = now_ - began_;
  const bool goes_on = yields_ != unlimited
                           ? turn_ <= spins_ + yields_
                           : waited < window_ && (waited <= short_window || !HostLoad::instance().exceeds_cores(now_));
  return goes_on ? WaitAction::yield : WaitAction::sleep;
}

DTRAIN_DEFINED void WaitPace::yield() noexcept {
  const Clock::time_point begin = Clock::now();
  static_cast<void>(::sched_yield());
  const Clock::duration took = Clock::now() - begin;
  WaitTime::add(took);
  was_long_ = took > longest_yield;
}

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
