#include "bench/timeline/picture.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

#include "bench/timeline/trace.hpp"
#include "dtrain/ddp/profile/timeline.hpp"
#include "support/contains.hpp"

namespace {

using dtrain::ddp::StepEvent;
using dtrain::ddp::StepRecord;

/// Two ranks, of which the second has not finished its second step.
std::string trace() {
  const auto at = [](int microseconds) {
    return StepRecord::Clock::time_point(std::chrono::microseconds(microseconds));
  };
  std::vector<dtrain::ddp::RankTimeline> ranks(2);
  for (int rank = 0; rank < 2; ++rank) {
    ranks[static_cast<std::size_t>(rank)].rank = rank;
    ranks[static_cast<std::size_t>(rank)].records = {
        {1, 0, StepEvent::begun, at(1000 + rank)},    {1, 0, StepEvent::ready, at(2000)},
        {1, 0, StepEvent::launched, at(2000)},        {1, 0, StepEvent::started, at(2100)},
        {1, 0, StepEvent::reduced, at(4000)},         {1, 0, StepEvent::waiting, at(3000)},
        {1, 0, StepEvent::finished, at(4100 + rank)}, {2, 0, StepEvent::begun, at(5000)}};
  }
  ranks[0].records.push_back({2, 0, StepEvent::finished, at(6000)});
  const std::vector<std::string> names{"a <weight>"};
  return dtrain::ddp::timeline_json(ranks, names);
}

}  // namespace

TEST_CASE("a trace that dtrain wrote is read, and its last whole step is one that every rank has finished") {
  const std::vector<bench::TraceEvent> events = bench::read_trace(trace());
  CHECK(events.size() == 11);  // of each rank five of step 1, and the first rank's step 2
  CHECK(bench::last_whole_step(events) == 1);
  CHECK(events[0].name == "a <weight>");
  CHECK(events[0].begin == 1000);
}

TEST_CASE("what is no trace is refused") {
  CHECK_THROWS_AS(bench::read_trace(""), dtrain::Error);
  CHECK_THROWS_AS(bench::read_trace("{\"ph\":\"X\",\"name\":3"), dtrain::Error);
  CHECK_THROWS_AS(bench::read_trace("{\"ph\":\"X\",\"name\":\"no step\",\"ts\":1}"), dtrain::Error);
}

TEST_CASE("the picture has a row of each rank, with its backward pass, gradients, reductions and waiting") {
  const std::string svg = bench::TimelinePicture(bench::read_trace(trace()), 1).svg();
  CHECK(support::count_of(svg, ">rank 0</text>") == 1);
  CHECK(support::count_of(svg, ">rank 1</text>") == 1);
  CHECK(support::count_of(svg, "<title>step 1</title>") == 2);
  CHECK(support::count_of(svg, "<title>waiting</title>") == 3);  // and the legend's
  CHECK(support::count_of(svg, "<title>a &lt;weight> is ready</title>") == 2);
  CHECK(support::count_of(svg, "<title>bucket 0</title>") == 2);
  CHECK(svg.find("step 2") == std::string::npos);
  CHECK(svg.find("<title>step 1</title>") < svg.rfind("<title>waiting</title>"));  // which is drawn over it
  CHECK(svg.ends_with("</svg>\n"));
}

TEST_CASE("a step that the trace does not have, and a rank that no job has, are refused") {
  const std::vector<bench::TraceEvent> events = bench::read_trace(trace());
  CHECK_THROWS_WITH_AS(bench::TimelinePicture(events, 9), "the trace has nothing of step 9; name another",
                       dtrain::Error);
  CHECK_THROWS_WITH_AS(bench::TimelinePicture(events, 0), doctest::Contains("no step that every rank has whole"),
                       dtrain::Error);
  for (const char* rank : {"-1", "1e300", "2147483648"}) {
    CHECK_THROWS_AS(bench::read_trace("{\"ph\":\"X\",\"name\":\"x\",\"pid\":" + std::string(rank) +
                                      ",\"tid\":0,\"args\":{\"step\":1}}"),
                    dtrain::Error);
  }
}
