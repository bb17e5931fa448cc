#pragma once
/// @file
/// A step of all ranks as SVG: when each gradient was ready, when its bucket was reduced, how long the rank waited.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "bench/picture_colors.hpp"
#include "bench/timeline/trace.hpp"

namespace bench {

/// Draws one step. Each rank has three rows: its backward pass and its waiting, its gradients, its reductions.
class TimelinePicture {
 public:
  /// @throws dtrain::Error (invalid_argument) for a step that the trace does not have
  TimelinePicture(const std::vector<TraceEvent>& events, std::uint64_t step) : step_(step) {
    double first = std::numeric_limits<double>::max();
    double last = 0;
    for (const TraceEvent& event : events) {
      if (event.step != step) continue;
      first = std::min(first, event.begin);
      last = std::max(last, event.begin + event.duration);
      ranks_[event.rank].push_back(event);
    }
    if (ranks_.empty()) {
      throw dtrain::Error(dtrain::Errc::invalid_argument,
                          step == 0
                              ? std::string("the trace has no step that every rank has whole; --step=N draws what "
                                            "there is of one")
                              : "the trace has nothing of step " + std::to_string(step) + "; name another");
    }
    for (auto& [rank, own] : ranks_) {  // what is inside another span comes after it, and is drawn over it
      std::stable_sort(own.begin(), own.end(),
                       [](const TraceEvent& a, const TraceEvent& b) { return a.duration > b.duration; });
    }
    begin_ = first;
    length_ = std::max(last - first, 1.0);
  }

  /// The whole file.
  std::string svg() const {
    const double height = top + rank_height * static_cast<double>(ranks_.size()) + 26;
    std::string text = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"" + number(height) +
                       "\" viewBox=\"0 0 760 " + number(height) +
                       "\" font-family=\"sans-serif\" font-size=\"12\" fill=\"" + picture_color::text + "\">\n";
    text += label(8, 22, "Step " + std::to_string(step_) + ", milliseconds", "start") + legend();
    text += axis(height - 24);
    double y = top;
    for (const auto& [rank, events] : ranks_) {
      text += label(left - 10, y + 30, "rank " + std::to_string(rank), "end");
      for (const TraceEvent& event : events) {
        text += shape(event, y);
      }
      y += rank_height;
    }
    return text + "</svg>\n";
  }

 private:
  static constexpr double left = 60;
  static constexpr double right = 740;
  static constexpr double top = 50;
  static constexpr double rank_height = 66;
  static constexpr const char* backward_color = picture_color::grey;
  static constexpr const char* waiting_color = picture_color::red;
  static constexpr const char* ready_color = picture_color::green;
  static constexpr const char* reduce_colors[] = {picture_color::blue, picture_color::light_blue};  // neighbours differ

  double x_of(double time) const { return left + (right - left) * (time - begin_) / length_; }

  std::string shape(const TraceEvent& event, double y) const {
    const double x = x_of(event.begin);
    const double width = std::max(x_of(event.begin + event.duration) - x, 0.5);
    if (event.row == 0) {
      const bool waiting = event.name == "waiting";
      return box(x, y, width, 18, waiting ? waiting_color : backward_color, event.name);
    }
    if (event.row == 1) return box(x - 0.75, y + 20, 1.5, 14, ready_color, event.name + " is ready");
    if (event.row != 3) return "";
    const bool odd = !event.name.empty() && (event.name.back() - '0') % 2 != 0;
    return box(x, y + 36, width, 18, reduce_colors[odd ? 1 : 0], event.name);
  }

  static std::string legend() {
    std::string text;
    double x = 190;
    const auto entry = [&](const char* color, const char* words, double width) {
      text += box(x, 12, 12, 12, color, words) + label(x + 17, 22, words, "start");
      x += width;
    };
    entry(backward_color, "backward pass", 120);
    entry(ready_color, "a gradient is ready", 150);
    entry(reduce_colors[0], "a bucket is reduced", 150);
    entry(waiting_color, "waiting", 0);
    return text;
  }

  /// A line at every round number of milliseconds, about eight of them.
  std::string axis(double bottom) const {
    double distance = 1;
    for (const double candidate : {1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0,
                                   10000.0, 20000.0, 50000.0, 100000.0, 200000.0, 500000.0, 1000000.0}) {
      distance = candidate;
      if (length_ / candidate <= 8) break;
    }
    std::string text;
    for (int line = 0; line <= 20 && line * distance <= length_; ++line) {
      const double x = x_of(begin_ + line * distance);
      char words[32];
      std::snprintf(words, sizeof words, "%g", line * distance / 1000);
      text += "<line x1=\"" + number(x) + "\" y1=\"" + number(top - 8) + "\" x2=\"" + number(x) + "\" y2=\"" +
              number(bottom) + "\" stroke=\"" + picture_color::grid + "\"/>\n" + label(x, bottom + 16, words, "middle");
    }
    return text;
  }

  static std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", value);
    return text;
  }
  static std::string escaped(const std::string& words) {
    std::string text;
    for (const char byte : words) {
      text += byte == '<' ? "&lt;" : byte == '&' ? "&amp;" : std::string(1, byte);
    }
    return text;
  }
  static std::string box(double x, double y, double width, double height, const char* color, const std::string& words) {
    return "<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(width) + "\" height=\"" +
           number(height) + "\" fill=\"" + color + "\"><title>" + escaped(words) + "</title></rect>\n";
  }
  static std::string label(double x, double y, const std::string& words, const char* anchor) {
    return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor + "\">" + escaped(words) +
           "</text>\n";
  }

  std::uint64_t step_;
  double begin_ = 0;
  double length_ = 1;
  std::map<int, std::vector<TraceEvent>> ranks_;
};

}  // namespace bench
