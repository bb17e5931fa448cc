// A rank's part of a timeline from anywhere: what is read is what would be written, and its trace is JSON.

#include "fuzz/fuzz.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/ddp/profile/timeline.hpp"
#include "dtrain/identity/formats/json.hpp"

namespace ddp = dtrain::ddp;
using ddp::RankTimeline;
using ddp::StepEvent;
using ddp::StepRecord;

namespace {

StepRecord at(std::int64_t nanoseconds, StepEvent event, std::uint32_t index = 0) {
  return {1, index, event, StepRecord::Clock::time_point(std::chrono::nanoseconds(nanoseconds))};
}

/// Of another host, with every event of one step.
RankTimeline good_part() {
  return {1,
          "node \"b\"\n",
          std::chrono::nanoseconds(-500),
          std::chrono::nanoseconds(20),
          {at(1000, StepEvent::begun), at(1500, StepEvent::ready, 1), at(2000, StepEvent::launched, 7),
           at(2500, StepEvent::started, 7), at(3000, StepEvent::waiting), at(3500, StepEvent::reduced, 7),
           at(4000, StepEvent::finished)}};
}

}  // namespace

std::vector<std::string> fuzz::seeds() {
  const std::string good = ddp::serialise(good_part(), 100);
  return {good, ddp::serialise({1, "", {}, {}, {}}, 0), good + good, good.substr(0, good.size() - 1)};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(fuzz::text_of(data, size));
  const std::optional<RankTimeline> part = ddp::parse_rank_timeline(1, text);
  if (!part) {
    return 0;
  }
  fuzz::require(part->rank == 1, "a part is of the rank that it was asked of");
  fuzz::require(part->records.size() <= size / ddp::step_record_bytes,
                "records take the bytes that they are read from");
  fuzz::require(ddp::serialise(*part, part->records.size()) == text, "what is read is written again as it was");

  const std::vector<RankTimeline> ranks{{0, "node a", {}, {}, {at(1000, StepEvent::begun)}}, *part};
  const std::vector<std::string> names{"weight"};
  const std::string trace = ddp::timeline_json(ranks, names);
  const bool is_short = trace.size() <= dtrain::identity::longest_json;
  fuzz::require(!is_short || dtrain::identity::parse_json(trace), "a trace is JSON whatever its records are");
  return 0;
}
