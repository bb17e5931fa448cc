#pragma once
/// @file
/// Reads the traces that dtrain::write_timeline writes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/identity/formats/json.hpp"

namespace bench {

/// A span or an instant; times in microseconds.
struct TraceEvent {
  std::string name;
  int rank = 0;
  int row =
      0;  ///< 0: the step and its waiting, 1: gradients, 2: buckets that are launched, 3: buckets that are reduced
  std::uint64_t step = 0;
  double begin = 0;
  double duration = 0;
};

/// An event a line, as dtrain writes them; names of rows and ranks are passed over.
/// @throws dtrain::Error (protocol) for a line that is no event, or where there is none
inline std::vector<TraceEvent> read_trace(const std::string& text) {
  std::vector<TraceEvent> events;
  std::istringstream lines(text);
  const auto refuse = [] {
    throw dtrain::Error(dtrain::Errc::protocol, "this is no timeline of dtrain's; give the file of --timeline=FILE");
  };
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("{\"ph\":")) continue;
    if (line.back() == ',') line.pop_back();
    const std::optional<dtrain::identity::Json> json = dtrain::identity::parse_json(line);
    if (!json || json->find("ph")->text == "M") {
      if (!json) refuse();
      continue;
    }
    const auto number = [&](const char* key) {
      const dtrain::identity::Json* value = json->find(key);
      return value == nullptr ? 0.0 : std::strtod(value->text.c_str(), nullptr);
    };
    const auto small = [&](const char* key) {
      const double value = number(key);
      if (!(value >= 0 && value <= 1e6)) refuse();
      return static_cast<int>(value);
    };
    const dtrain::identity::Json* name = json->find("name");
    const dtrain::identity::Json* arguments = json->find("args");
    const dtrain::identity::Json* step = arguments == nullptr ? nullptr : arguments->find("step");
    if (name == nullptr || step == nullptr) refuse();
    events.push_back({name->text, small("pid"), small("tid"), std::strtoull(step->text.c_str(), nullptr, 10),
                      number("ts"), number("dur")});
  }
  if (events.empty()) refuse();
  return events;
}

/// The last step that every rank in the trace has whole. @returns 0 where there is none
inline std::uint64_t last_whole_step(const std::vector<TraceEvent>& events) {
  std::vector<std::uint64_t> last;  // of each rank
  for (const TraceEvent& event : events) {
    const auto rank = static_cast<std::size_t>(event.rank);
    if (rank > 100000) continue;
    if (last.size() <= rank) last.resize(rank + 1);
    if (event.name == "step " + std::to_string(event.step)) last[rank] = std::max(last[rank], event.step);
  }
  return last.empty() ? 0 : *std::min_element(last.begin(), last.end());
}

}  // namespace bench
