#pragma once
/// @file
/// SlowRanks of RankStatuses: finds ranks that compute longer than the others, by the windows in their statuses.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Windows of the same steps, with as many passes each, are compared: x is the logarithm of a rank's median over the
/// ranks' lower median (of two ranks the faster one's). With the factor 1.15 a rank is slow when in its last 4 windows
/// each x is above ln 1.08, and their mean above ln 1.15, 3.5 standard errors of that mean, and, of 8 ranks and
/// more, 3.5 spreads of the ranks' means; or, with a mean above ln 1.1, in 10 of its last 12 windows. It is until two
/// windows in a row are below 1.05.
class SlowRanks {
 public:
  using Clock = Deadline::Clock;

  /// @param factor Limits::straggler_factor
  explicit SlowRanks(double factor);

  /// @returns the lines to log after a rank's status @param ranks the number of ranks in the job
  std::vector<std::string> receive(int rank, const std::string& host, const RankStatus& status, std::size_t ranks,
                                   Clock::time_point now);
  void forget(int rank) noexcept { ranks_.erase(rank); }

 private:
  /// x of a window, and its variance.
  struct Excess {
    double logarithm;
    double variance;
    std::uint64_t first_step;
  };

  struct Rank {
    std::string host{};
    std::uint32_t process = 0;
    std::deque<ComputingWindow> windows{};  ///< the last most_windows
    std::deque<Excess> excesses{};          ///< the last most_excesses
    std::uint64_t slow_since = 0;           ///< first step of the windows in which it was found slow
    bool is_named = false;
    bool was_low = false;  ///< whether the last x was below named_excess_
  };

  static constexpr std::size_t most_windows = 4;
  static constexpr std::size_t most_excesses = 12;
  static constexpr int most_lines = 6;  ///< lines in an hour

  std::vector<const ComputingWindow*> windows_at(const ComputingWindow& first) const;
  std::vector<int> compare(const std::vector<const ComputingWindow*>& windows);
  bool is_slow(const Rank& rank, std::size_t windows, double factor) const;
  std::vector<std::string> texts(const std::vector<int>& named,
                                 const std::vector<const ComputingWindow*>& windows) const;

  double factor_;
  double least_excess_;  ///< ln 1.08 for the factor 1.15
  double named_excess_;  ///< ln 1.05 for the factor 1.15
  std::map<int, Rank> ranks_;
  std::uint64_t compared_ = 0;  ///< last step of the first rank's window that was compared last
  std::deque<Clock::time_point> lines_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <cmath>
#include <utility>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

inline constexpr double most_errors = 3.5;

/// The value with as many below as above it, or the lower one of two. @pre values is not empty
inline double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Steps that both windows have.
inline std::uint64_t common_steps(const ComputingWindow& a, const ComputingWindow& b) noexcept {
  const std::uint64_t first = std::max(a.first_step, b.first_step);
  const std::uint64_t last = std::min(a.last_step, b.last_step);
  return last >= first ? last - first + 1 : 0;
}

inline std::uint64_t length_of(const ComputingWindow& window) noexcept {
  return window.last_step - window.first_step + 1;
}

/// Whether both have as many passes in a step, to within 2%: windows end at other steps, of other numbers of passes.
inline bool has_equal_passes(const ComputingWindow& a, const ComputingWindow& b) noexcept {
  const std::uint32_t most = std::max(a.passes, b.passes);
  return most - std::min(a.passes, b.passes) <= most / 50;
}

/// Variance of a median's logarithm. Source: the standard error of a median of n is 1.2533 sigma / sqrt(n), and the
/// quartiles of a normal distribution are 1.349 sigma apart.
inline double variance_of(const ComputingWindow& window) noexcept {
  const double spread =
      std::log(static_cast<double>(window.upper_quartile) / static_cast<double>(window.lower_quartile));
  const double sigma = 1.2533 / 1.349 * spread;
  return sigma * sigma / static_cast<double>(window.steps);
}

/// Whether all numbers, which come from outside, can be computed with.
inline bool is_usable(const ComputingWindow& window) noexcept {
  constexpr std::uint64_t most = std::uint64_t{1} << 60;
  return window.steps > 0 && window.first_step > 0 && window.last_step >= window.first_step &&
         window.last_step < most && window.lower_quartile > 0 && window.median >= window.lower_quartile &&
         window.upper_quartile >= window.median && window.upper_quartile < most && window.backward < most &&
         window.outside < most && window.core_wait <= 1000;
}

}  // namespace detail

DTRAIN_DEFINED SlowRanks::SlowRanks(double factor)
    : factor_(factor),
      least_excess_(std::log(1 + (factor - 1) * 8 / 15)),
      named_excess_(std::log(1 + (factor - 1) / 3)) {}

DTRAIN_DEFINED std::vector<std::string> SlowRanks::receive(int rank, const std::string& host, const RankStatus& status,
                                                           std::size_t ranks, Clock::time_point now) {
  const ComputingWindow& window = status.computing;
  if (factor_ == 0 || ranks < 2 || window.ranks != ranks || !detail::is_usable(window)) return {};
  Rank& own = ranks_[rank];
  if (!own.windows.empty() && own.windows.back().last_step == window.last_step) return {};
  if (!own.windows.empty() && window.first_step <= own.windows.back().first_step) own = {};  // another wrapper's
  own.host = host;
  own.process = status.process;
  own.windows.push_back(window);
  if (own.windows.size() > most_windows) own.windows.pop_front();

  const std::deque<ComputingWindow>& first = ranks_.begin()->second.windows;
  if (ranks_.size() != ranks || first.empty()) return {};
  if (first.back().last_step < compared_) compared_ = 0;
  std::vector<std::string> lines;
  for (const ComputingWindow& each : first) {
    if (each.last_step <= compared_) continue;
    const std::vector<const ComputingWindow*> windows = windows_at(each);
    if (windows.empty()) continue;
    compared_ = each.last_step;
    const std::vector<int> named = compare(windows);
    while (!lines_.empty() && now - lines_.front() > std::chrono::hours(1))
      lines_.pop_front();
    for (std::string& text : texts(named, windows)) {
      if (lines_.size() == most_lines) break;
      lines_.push_back(now);
      lines.push_back(std::move(text));
    }
  }
  return lines;
}

/// Each rank's window with the most steps of `first`, in the ranks' order; none if a rank has none with half of them.
DTRAIN_DEFINED std::vector<const ComputingWindow*> SlowRanks::windows_at(const ComputingWindow& first) const {
  std::vector<const ComputingWindow*> found;
  for (const auto& [rank, each] : ranks_) {
    const auto best = std::max_element(each.windows.begin(), each.windows.end(), [&](const auto& a, const auto& b) {
      return detail::common_steps(a, first) < detail::common_steps(b, first);
    });
    if (best == each.windows.end() || !detail::has_equal_passes(*best, first) ||
        2 * detail::common_steps(*best, first) < detail::length_of(first))
      return {};
    found.push_back(&*best);
  }
  return found;
}

DTRAIN_DEFINED bool SlowRanks::is_slow(const Rank& rank, std::size_t windows, double factor) const {
  if (rank.excesses.size() < windows) return false;
  const auto mean_of = [windows](const Rank& of) {
    double total = 0;
    for (std::size_t i = of.excesses.size() - windows; i < of.excesses.size(); ++i)
      total += of.excesses[i].logarithm;
    return total / static_cast<double>(windows);
  };
  std::size_t above = 0;
  double variance = 0;
  for (std::size_t i = rank.excesses.size() - windows; i < rank.excesses.size(); ++i) {
    above += rank.excesses[i].logarithm > least_excess_ ? 1 : 0;
    variance += rank.excesses[i].variance;
  }
  const double mean = mean_of(rank);
  const double error = std::sqrt(variance) / static_cast<double>(windows);
  const std::size_t wanted = windows < most_excesses ? windows : windows - 2;
  if (above < wanted || mean <= std::log(factor) || mean <= detail::most_errors * error) return false;
  if (ranks_.size() < 8) return true;
  std::vector<double> means;
  for (const auto& each : ranks_)
    if (each.second.excesses.size() >= windows) means.push_back(mean_of(each.second));
  const double middle = detail::lower_median(means);
  for (double& each : means)
    each = std::abs(each - middle);
  return mean > detail::most_errors * 1.4826 * detail::lower_median(std::move(means));
}

/// @returns the ranks that are slow now, and were not
DTRAIN_DEFINED std::vector<int> SlowRanks::compare(const std::vector<const ComputingWindow*>& windows) {
  std::vector<double> medians;
  std::vector<double> variances;
  for (const ComputingWindow* const each : windows) {
    medians.push_back(static_cast<double>(each->median));
    variances.push_back(detail::variance_of(*each));
  }
  const double reference = detail::lower_median(medians);
  const double variance = detail::lower_median(variances);
  std::size_t index = 0;
  for (auto& [rank, each] : ranks_) {
    const double logarithm = std::log(medians[index] / reference);
    each.excesses.push_back({logarithm, variances[index] + variance, windows[index]->first_step});
    if (each.excesses.size() > most_excesses) each.excesses.pop_front();
    const bool is_low = logarithm < named_excess_;
    if (std::exchange(each.was_low, is_low) && is_low) each.is_named = false;
    ++index;
  }
  std::vector<int> named;
  for (auto& [rank, each] : ranks_) {
    if (each.is_named) continue;
    const bool is_much = is_slow(each, most_windows, factor_);
    if (!is_much && !is_slow(each, most_excesses, 1 + (factor_ - 1) * 2 / 3)) continue;
    each.is_named = true;
    each.slow_since = each.excesses[is_much ? each.excesses.size() - most_windows : 0].first_step;
    named.push_back(rank);
  }
  return named;
}

/// A line for each rank, or one for all if they are more than an eighth of the ranks.
DTRAIN_DEFINED std::vector<std::string> SlowRanks::texts(const std::vector<int>& named,
                                                         const std::vector<const ComputingWindow*>& windows) const {
  const auto reference = [&](std::uint64_t ComputingWindow::*part) {
    std::vector<double> values;
    for (const ComputingWindow* const each : windows)
      values.push_back(static_cast<double>(std::max<std::uint64_t>(each->*part, 1)));
    return detail::lower_median(std::move(values));
  };
  const auto window_of = [&](int rank) -> const ComputingWindow& {
    return *windows[static_cast<std::size_t>(std::distance(ranks_.begin(), ranks_.find(rank)))];
  };
  const double median = reference(&ComputingWindow::median);
  const auto ratio = [median](const ComputingWindow& of) { return static_cast<double>(of.median) / median; };
  const auto since = [](const Rank& rank) { return format_text("since about step {}", {rank.slow_since}); };
  std::vector<std::string> lines;
  if (named.size() > std::max<std::size_t>(1, ranks_.size() / 8)) {
    std::vector<double> ratios;
    std::string hosts;
    for (const int rank : named) {
      const std::string& host = ranks_.at(rank).host;
      hosts = hosts.empty() || hosts == host ? host : "several hosts";
      ratios.push_back(ratio(window_of(rank)));
    }
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    lines.push_back(
        format_text("{} ({}{}) compute {} to {} times as long as the median of {} ranks, {}",
                    {rank_list(named, 8), hosts == "several hosts" ? "" : "host ", hosts, fixed_text(*least, 2),
                     fixed_text(*most, 2), ranks_.size(), since(ranks_.at(named.front()))}));
    return lines;
  }
  for (const int rank : named) {
    const Rank& slow = ranks_.at(rank);
    const ComputingWindow& window = window_of(rank);
    const auto milliseconds = [](double nanoseconds) { return number_text(nanoseconds / 1e6, 3); };
    std::string line = format_text("rank {} (host {}, process {}) computes {} ms a step, {} times ",
                                   {rank, slow.host, slow.process, milliseconds(static_cast<double>(window.median)),
                                    fixed_text(ratio(window), 2)});
    if (ranks_.size() == 2) {
      append_text(line, "rank {}'s", {ranks_.begin()->first == rank ? ranks_.rbegin()->first : ranks_.begin()->first});
    } else {
      append_text(line, "the median of {} ranks", {ranks_.size()});
    }
    append_text(line, ", {}", {since(slow)});
    const auto add_part = [&](const char* where, std::uint64_t ComputingWindow::*part) {
      if (10 * (window.*part) < window.median) return;
      append_text(line, "; {} times {}", {fixed_text(static_cast<double>(window.*part) / reference(part), 2), where});
    };
    add_part("in the backward pass", &ComputingWindow::backward);
    add_part("outside of it", &ComputingWindow::outside);
    append_text(line, "; the others wait up to {} ms of each step for it",
                {milliseconds(static_cast<double>(window.median) - median)});
    if (window.core_wait >= 50) {
      append_text(line, "; its thread was without a core for {}% of the time", {window.core_wait / 10});
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

#endif  // DTRAIN_DEFINITIONS
