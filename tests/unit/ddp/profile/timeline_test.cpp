#include "dtrain/ddp/profile/timeline.hpp"
#include "dtrain/identity/formats/json.hpp"
#include "unit/ddp/prelude.hpp"

using dtrain::identity::Json;

namespace {

StepRecord at(std::int64_t nanoseconds, StepEvent event, std::uint32_t index = 0, std::uint64_t step = 1) {
  return {step, index, event, StepRecord::Clock::time_point(std::chrono::nanoseconds(nanoseconds))};
}

/// A step of two gradients in one bucket.
std::vector<StepRecord> one_step(std::int64_t begin) {
  return {at(begin, StepEvent::begun),
          at(begin + 1000, StepEvent::ready, 1),
          at(begin + 2500, StepEvent::ready),
          at(begin + 2600, StepEvent::launched, 7),
          at(begin + 3000, StepEvent::waiting),
          at(begin + 4000, StepEvent::started, 7),
          at(begin + 9000, StepEvent::reduced, 7),
          at(begin + 9500, StepEvent::finished)};
}

/// The events of a trace, which is to be JSON.
std::vector<Json> events_of(const std::string& text) {
  const std::optional<Json> trace = dtrain::identity::parse_json(text);
  REQUIRE(trace.has_value());
  REQUIRE(trace->find("traceEvents") != nullptr);
  return trace->find("traceEvents")->items;
}

/// "ph pid tid ts dur" of the event of that name.
std::string event(const std::string& text, const std::string& name) {
  for (const Json& one : events_of(text)) {
    if (one.find("name")->text != name) continue;
    std::string found = one.find("ph")->text + " " + one.find("pid")->text + " " + one.find("tid")->text;
    for (const char* key : {"ts", "dur"}) {
      if (const Json* value = one.find(key)) found += " " + value->text;
    }
    return found;
  }
  return "none";
}

std::string clock_of(const std::string& text) {
  return dtrain::identity::parse_json(text)->find("otherData")->find("clock")->text;
}

}  // namespace

TEST_CASE(
    "a step is a span, with its waiting, its gradients, and of each bucket the way to its start and its reduction") {
  const std::vector<RankTimeline> ranks{{0, "node", {}, {}, one_step(5000)}};
  const std::vector<std::string> names{"weight", "bias"};
  const std::string text = timeline_json(ranks, names);
  CHECK(event(text, "step 1") == "X 0 0 0.000 9.500");
  CHECK(event(text, "waiting") == "X 0 0 3.000 6.500");
  CHECK(event(text, "bias") == "i 0 1 1.000");
  CHECK(event(text, "weight") == "i 0 1 2.500");
  CHECK_CONTAINS(text, "\"name\":\"bucket 7\",\"pid\":0,\"tid\":2,\"ts\":2.600,\"dur\":1.400,\"args\":{\"step\":1}}",
                 "\"name\":\"bucket 7\",\"pid\":0,\"tid\":3,\"ts\":4.000,\"dur\":5.000,\"args\":{\"step\":1}}");
  CHECK(clock_of(text) == "one clock");
}

TEST_CASE(
    "ranks are processes on one clock: another host's times are moved by its offset, and the trace says how sure it "
    "is") {
  const std::vector<RankTimeline> ranks{
      {0, "a", {}, {}, one_step(5000)},
      {1, "b", std::chrono::nanoseconds(-1000000), std::chrono::microseconds(30), one_step(1006000)}};
  const std::string text = timeline_json(ranks);
  CHECK_CONTAINS(text, "\"name\":\"process_name\",\"pid\":1,\"tid\":0,\"args\":{\"name\":\"rank 1 on b\"}}",
                 "\"name\":\"step 1\",\"pid\":1,\"tid\":0,\"ts\":1.000,\"dur\":9.500");
  CHECK(clock_of(text) == "rank 0's clock; estimated over the store: rank 1 to within 30 us");
}

TEST_CASE("what the ring has lost one half of is left out, and a trace of nothing is one") {
  std::vector<StepRecord> records = one_step(5000);
  records.erase(records.begin());  // the step's beginning
  records.push_back(at(20000, StepEvent::launched, 1, 2));
  records.push_back(at(21000, StepEvent::started, 1, 2));
  const std::string text = timeline_json(std::vector<RankTimeline>{{0, "node", {}, {}, records}});
  CHECK(event(text, "step 1") == "none");
  CHECK(event(text, "0") == "i 0 1 1.500");  // without names, by number
  CHECK(event(text, "bucket 1") == "X 0 2 14.000 1.000");
  CHECK(events_of(timeline_json({})).empty());
  const std::string third = timeline_json(std::vector<RankTimeline>{{0, "node", {}, {}, records}}, {}, 3);
  CHECK(third.find("rank 0 on node, attempt 3") != std::string::npos);
  CHECK(events_of(timeline_json(std::vector<RankTimeline>{{0, "", {}, {}, {}}})).size() == 5);
}

TEST_CASE("names with anything in them are JSON strings") {
  const std::vector<RankTimeline> ranks{{0, "no\"de\\\n", {}, {}, one_step(0)}};
  const std::vector<std::string> names{"a\"b\\c\x01\xff", "\xc3\xa9"};
  const std::string text = timeline_json(ranks, names);
  CHECK(event(text, "\xc3\xa9") == "i 0 1 1.000");
  CHECK(events_of(text).size() == 5 + 6);
}

TEST_CASE("a rank's part is read back as it was written, its latest records where there are too many") {
  RankTimeline timeline{3, "node", std::chrono::nanoseconds(-5), std::chrono::nanoseconds(7), one_step(1000)};
  const std::optional<RankTimeline> whole = dtrain::ddp::parse_rank_timeline(3, serialise(timeline, 100));
  REQUIRE(whole.has_value());
  CHECK(whole->records == timeline.records);
  CHECK(whole->host == "node");
  CHECK(whole->clock_offset.count() == -5);
  CHECK(whole->clock_uncertainty.count() == 7);
  const std::optional<RankTimeline> latest = dtrain::ddp::parse_rank_timeline(3, serialise(timeline, 2));
  REQUIRE(latest.has_value());
  CHECK(latest->records == std::vector<StepRecord>(timeline.records.end() - 2, timeline.records.end()));
}

TEST_CASE("bytes that are no rank's part are refused") {
  const std::string good = serialise(RankTimeline{3, "node", {}, {}, one_step(1000)}, 100);
  for (std::size_t length = 0; length < good.size(); ++length) {
    const std::optional<RankTimeline> cut = dtrain::ddp::parse_rank_timeline(3, good.substr(0, length));
    CHECK((!cut || (good.size() - length) % dtrain::ddp::step_record_bytes == 0));
  }
  std::string strange = good;
  strange[strange.size() - 9] = 99;  // the last record's event
  CHECK(!dtrain::ddp::parse_rank_timeline(3, strange));
}

TEST_CASE("times of years are written to the nanosecond") {
  constexpr std::int64_t year = 31'556'952'000'000'001;
  const std::vector<StepRecord> records{at(0, StepEvent::begun), at(year, StepEvent::finished)};
  const std::string text = timeline_json(std::vector<RankTimeline>{{0, "node", {}, {}, records}});
  CHECK(event(text, "step 1") == "X 0 0 0.000 31556952000000.001");
}

TEST_CASE("times that no clock has are refused: their differences could not be formed") {
  using std::chrono::nanoseconds;
  const nanoseconds most = dtrain::max_time_read;
  const auto is_read = [](nanoseconds offset, nanoseconds uncertainty, nanoseconds time) {
    const RankTimeline timeline{1, "node", offset, uncertainty, {at(time.count(), StepEvent::begun)}};
    return dtrain::ddp::parse_rank_timeline(1, serialise(timeline, 1)).has_value();
  };
  CHECK(is_read(most, most, most));
  CHECK(is_read(-most, {}, -most));
  const nanoseconds one(1);
  CHECK(!is_read(most + one, {}, {}));
  CHECK(!is_read({}, most + one, {}));
  CHECK(!is_read({}, {}, -most - one));
  CHECK(!is_read({}, {}, nanoseconds::min()));

  const std::vector<RankTimeline> apart{{0, "a", -most, {}, {at(-most.count(), StepEvent::begun)}},
                                        {1, "b", most, {}, {at(most.count(), StepEvent::ready)}}};
  CHECK(event(timeline_json(apart), "0") == "i 1 1 4611686018427387.904");
}
