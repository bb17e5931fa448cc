#include "unit/ddp/prelude.hpp"

TEST_CASE("records come back in the order in which they were written") {
  StepRecorder recorder(8);
  const StepRecord::Clock::time_point now = StepRecord::Clock::now();
  recorder.note(1, StepEvent::begun, 0, now);
  recorder.note(1, StepEvent::ready, 70000, now + std::chrono::nanoseconds(5));
  recorder.note(2, StepEvent::reduced, 3, now + std::chrono::nanoseconds(9));
  CHECK(recorder.records() == std::vector<StepRecord>{{1, 0, StepEvent::begun, now},
                                                      {1, 70000, StepEvent::ready, now + std::chrono::nanoseconds(5)},
                                                      {2, 3, StepEvent::reduced, now + std::chrono::nanoseconds(9)}});
  CHECK(recorder.records(2).size() == 1);
}

TEST_CASE("a full ring forgets its oldest records only") {
  StepRecorder recorder(5);  // rounded up to 8
  for (std::uint64_t step = 1; step <= 20; ++step)
    recorder.note(step, StepEvent::finished, 0);
  const std::vector<StepRecord> kept = recorder.records();
  REQUIRE(kept.size() == 8);
  CHECK(kept.front().step == 13);
  CHECK(kept.back().step == 20);
}

TEST_CASE("a reader beside writers sees whole records only") {
  StepRecorder recorder(16);
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (std::uint64_t writer = 1; writer <= 3; ++writer) {
    writers.emplace_back([&, writer] {
      for (std::uint64_t i = 0; !stop; ++i) {
        const auto time = StepRecord::Clock::time_point(std::chrono::nanoseconds(writer * 1000 + i % 100));
        recorder.note(writer * 1000 + i % 100, StepEvent::ready, writer * 1000 + i % 100, time);
      }
    });
  }
  int torn = 0;
  std::size_t seen = 0;
  const auto enough = dtrain::Deadline::after(std::chrono::milliseconds(100));
  const auto too_long = dtrain::Deadline::after(std::chrono::seconds(60));
  while (!enough.passed() || (seen == 0 && !too_long.passed())) {
    for (const StepRecord& record : recorder.records()) {
      ++seen;
      const bool whole = record.step == record.index && record.event == StepEvent::ready &&
                         record.time.time_since_epoch().count() == static_cast<std::int64_t>(record.step);
      torn += whole ? 0 : 1;
    }
  }
  stop = true;
  for (std::thread& writer : writers)
    writer.join();
  CHECK(torn == 0);
  CHECK(seen > 0);
}

TEST_CASE("every event has a name of its own") {
  CHECK(std::string(name(StepEvent::begun)) == "begun");
  CHECK(std::string(name(StepEvent::finished)) == "finished");
}
