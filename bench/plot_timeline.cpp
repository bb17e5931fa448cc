// Draws one step of a training's timeline as SVG: fashion_mnist --timeline=trace.json writes one.

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "bench/goal.hpp"
#include "bench/timeline/picture.hpp"
#include "bench/timeline/trace.hpp"
#include "bench/write_file.hpp"

namespace {

constexpr const char* usage_line = "TRACE --svg=FILE [--step=N (the last one that all ranks have)]";

struct Wish {
  std::string trace{};
  std::string svg{};
  std::uint64_t step = 0;
};

/// @throws dtrain::Error (usage)
Wish parse(int argc, char** argv) {
  Wish wish;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--svg=")) {
      wish.svg = argument.substr(6);
    } else if (argument.starts_with("--step=")) {
      const std::string_view text = argument.substr(7);
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), wish.step);
      if (error != std::errc() || end != text.data() + text.size() || wish.step == 0) {
        throw dtrain::Error(dtrain::Errc::usage,
                            "'" + std::string(text) + "' is no number of a step; they count from 1");
      }
    } else if (wish.trace.empty() && !argument.starts_with("--")) {
      wish.trace = argument;
    } else {
      throw dtrain::Error(dtrain::Errc::usage, "'" + std::string(argument) + "' is not known");
    }
  }
  if (wish.trace.empty() || wish.svg.empty()) {
    throw dtrain::Error(dtrain::Errc::usage, "a trace and --svg=FILE are needed");
  }
  return wish;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_benchmark("plot_timeline", usage_line, argc, argv, [&] {
    const Wish wish = parse(argc, argv);
    std::ifstream file(wish.trace, std::ios::binary);
    if (!file) throw dtrain::errno_error("reading " + wish.trace);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const std::vector<bench::TraceEvent> events = bench::read_trace(text);
    const std::uint64_t step = wish.step != 0 ? wish.step : bench::last_whole_step(events);
    bench::write_file(wish.svg, bench::TimelinePicture(events, step).svg());
    std::printf("%s: step %llu\n", wish.svg.c_str(), static_cast<unsigned long long>(step));
  });
}
