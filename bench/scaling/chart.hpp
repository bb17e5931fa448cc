#pragma once
/// @file
/// A chart of scaling efficiency as SVG: ranks on a logarithmic axis, lines with their names at the end.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "bench/picture_colors.hpp"

namespace bench {

struct ChartLine {
  std::string name;
  std::vector<std::pair<int, double>> points;  ///< ranks, and the share (0 to 1) of ideal throughput
};

class Chart {
 public:
  explicit Chart(std::string title) : title_(std::move(title)) {}

  void add(ChartLine line) { lines_.push_back(std::move(line)); }

  /// The whole file.
  std::string svg() const {
    std::string text =
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"400\" viewBox=\"0 0 760 400\" "
        "font-family=\"sans-serif\" font-size=\"13\" fill=\"" +
        std::string(picture_color::text) + "\">\n";
    text += label(left, 24, title_, "start");
    for (int percent = 0; percent <= 100; percent += 20) {
      const double y = y_of(percent / 100.0);
      text += stroke(left, y, right, y, picture_color::grid, 1) +
              label(left - 8, y + 4, std::to_string(percent) + " %", "end");
    }
    for (int ranks = 1; ranks <= most_ranks(); ranks *= 4) {
      text += label(x_of(ranks), bottom + 20, std::to_string(ranks), "middle");
    }
    text += label((left + right) / 2, bottom + 42, "ranks", "middle");
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      const std::string color = colors[i % std::size(colors)];
      const auto& points = lines_[i].points;
      for (std::size_t k = 1; k < points.size(); ++k) {
        text += stroke(x_of(points[k - 1].first), y_of(points[k - 1].second), x_of(points[k].first),
                       y_of(points[k].second), color, 2);
      }
      text += "<text x=\"" + number(right + 8) + "\" y=\"" + number(name_place(i)) + "\" fill=\"" + color + "\">" +
              lines_[i].name + "</text>\n";
    }
    return text + "</svg>\n";
  }

 private:
  static constexpr double left = 60;
  static constexpr double right = 560;
  static constexpr double top = 44;
  static constexpr double bottom = 340;
  static constexpr const char* colors[] = {picture_color::blue,  picture_color::violet, picture_color::red,
                                           picture_color::amber, picture_color::green,  picture_color::grey};

  int most_ranks() const {
    int most = 1;
    for (const ChartLine& line : lines_) {
      for (const auto& point : line.points) {
        most = std::max(most, point.first);
      }
    }
    return most;
  }
  double x_of(int ranks) const { return left + (right - left) * std::log2(ranks) / std::log2(most_ranks()); }
  static double y_of(double share) { return bottom - (bottom - top) * share; }

  /// Names stand beside their lines' ends, in their order, a line of text apart at least.
  double name_place(std::size_t wanted) const {
    std::vector<std::size_t> order(lines_.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      order[i] = i;
    std::sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
      return lines_[a].points.back().second > lines_[b].points.back().second;
    });
    double place = 0;
    for (const std::size_t i : order) {
      place = std::max(place + 16, y_of(lines_[i].points.back().second) + 4);
      if (i == wanted) break;
    }
    return place;
  }

  static std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", value);
    return text;
  }
  static std::string stroke(double x1, double y1, double x2, double y2, const std::string& color, int width) {
    return "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) + "\" y2=\"" + number(y2) +
           "\" stroke=\"" + color + "\" stroke-width=\"" + std::to_string(width) + "\"/>\n";
  }
  static std::string label(double x, double y, const std::string& words, const char* anchor) {
    return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor + "\">" + words +
           "</text>\n";
  }

  std::string title_;
  std::vector<ChartLine> lines_;
};

}  // namespace bench
