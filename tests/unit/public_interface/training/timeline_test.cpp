// ctest: TIMEOUT 120
// The timeline of a whole job, whose ranks are threads.

#include "dtrain/identity/formats/json.hpp"
#include "unit/public_interface/prelude.hpp"

namespace {

using dtrain::identity::Json;
using StorePolicy = dtrain::Policy<dtrain::launch::PerProcess, support::StoreBackend, dtrain::topology::Flat>;

/// A step of rank `rank` at a moment that is the same on all ranks, and as long as its number says.
std::vector<StepRecord> records_of(int rank, StepRecord::Clock::time_point begin) {
  return {{1, 0, StepEvent::begun, begin},
          {1, 0, StepEvent::ready, begin + std::chrono::microseconds(1)},
          {1, 0, StepEvent::finished, begin + std::chrono::milliseconds(1 + rank)}};
}

/// What ranks on these hosts write.
Json timeline_of(const std::vector<std::string>& hosts) {
  const support::TemporaryFile file;
  const auto now = StepRecord::Clock::now();
  const auto ends = support::run_groups<StorePolicy>(
      static_cast<int>(hosts.size()),
      [&](const dtrain::ProcessGroup<StorePolicy>& group) {
        const std::vector<std::string> names{"the weight"};
        for (int round = 0; round < 2; ++round) {  // the second writes the same again
          dtrain::write_timeline(group, file.path, records_of(group.rank(), now), names);
        }
      },
      std::chrono::seconds(30), hosts);
  CHECK(ends == std::vector<support::RankEnd>(hosts.size()));
  const auto json = dtrain::identity::parse_json(support::file_content(file.path));
  REQUIRE(json.has_value());
  return *json;
}

/// When the step of `rank` begins and how long it is, in microseconds.
std::pair<double, double> step_of(const Json& trace, int rank) {
  for (const Json& event : trace.find("traceEvents")->items) {
    if (event.find("name")->text == "step 1" && event.find("pid")->text == std::to_string(rank)) {
      return {std::strtod(event.find("ts")->text.c_str(), nullptr),
              std::strtod(event.find("dur")->text.c_str(), nullptr)};
    }
  }
  return {-1, -1};
}

}  // namespace

TEST_CASE("rank 0 writes every rank's records, of one host on one clock") {
  const Json trace = timeline_of({"a", "a", "a"});
  for (const int rank : {0, 1, 2}) {
    CAPTURE(rank);
    CHECK(step_of(trace, rank).first == 0);
    CHECK(step_of(trace, rank).second == 1000 * (rank + 1));
  }
  CHECK(trace.find("otherData")->find("clock")->text == "one clock");
}

TEST_CASE("the clock of another host is estimated, and is off by less than the trace says") {
  const Json trace = timeline_of({"a", "b", "a"});
  const std::string clock = trace.find("otherData")->find("clock")->text;
  CAPTURE(clock);
  const std::string before = "rank 0's clock; estimated over the store: rank 1 to within ";
  REQUIRE(clock.find(before) == 0);
  const double uncertainty = std::strtod(clock.c_str() + before.size(), nullptr);  // all are threads of one process
  CHECK(std::abs(step_of(trace, 1).first - step_of(trace, 0).first) <= uncertainty + 1);
  CHECK(step_of(trace, 2).first == step_of(trace, 0).first);
}

TEST_CASE("a timeline that cannot be written is the same Error on every rank, and who catches it goes on") {
  std::mutex mutex;
  std::vector<std::string> sentences;
  run_well<StorePolicy>(2, [&](const dtrain::ProcessGroup<StorePolicy>& group) {
    try {
      dtrain::write_timeline(group, "/nowhere/timeline", records_of(group.rank(), {}));
    } catch (const dtrain::Error& error) {
      const std::lock_guard lock(mutex);
      sentences.emplace_back(error.what());
    }
    group.barrier();
  });
  CHECK(sentences ==
        std::vector<std::string>(2,
                                 "writing the file /nowhere/timeline failed: No such file or directory; "
                                 "what was there is unchanged; name a file in a folder that can be "
                                 "written and has room (on rank 0 on host " +
                                     dtrain::rendezvous::host_identity().name + ", which does it for all ranks)"));
}
