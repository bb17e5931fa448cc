#include "dtrain/ddp/profile/reducer_statistics.hpp"
#include "support/thread_ranks.hpp"
#include "unit/ddp/prelude.hpp"

namespace {

std::vector<StepEvent> events_of(const std::vector<StepRecord>& records, std::uint64_t step) {
  std::vector<StepEvent> events;
  for (const StepRecord& record : records) {
    if (record.step == step) events.push_back(record.event);
  }
  return events;
}

}  // namespace

TEST_CASE("statistics are a line of means, without what was not measured") {
  ReducerStatistics statistics{200, 20'000'000'000, 12, {620ms, 1640ms, 1000ms, 880ms, 120ms}, true, 200};
  CHECK(to_string(statistics) ==
        "a step of 200: forward 3.1 ms, backward 8.2 ms, communication 5 ms (hidden 4.4 ms), exposed 0.6 ms, 100 MB in "
        "12 buckets");
  statistics.is_measured = false;
  statistics.buckets = 1;
  CHECK(to_string(statistics) == "a step of 200: forward 3.1 ms, backward 8.2 ms, finish 0.6 ms, 100 MB in 1 bucket");
  statistics.program_drives_steps = true;  // a library may make its backward pass before begin()
  CHECK(to_string(statistics) == "a step of 200: computing 3.1 ms, backward 8.2 ms, finish 0.6 ms, 100 MB in 1 bucket");
  statistics.times.forward = std::chrono::milliseconds(200 * 5651);
  CHECK_CONTAINS(to_string(statistics), "computing 5651 ms, ");
  statistics.times.waiting = std::chrono::milliseconds(200 * 50);
  CHECK(to_string(statistics).find("waiting") == std::string::npos);  // below 1%
  statistics.times.waiting = std::chrono::milliseconds(200 * 59);
  CHECK_CONTAINS(to_string(statistics), "backward 8.2 ms, of both waiting 59 ms, finish");
  CHECK(to_string(ReducerStatistics{}) == "a step of 0: forward 0 ms, backward 0 ms, finish 0 ms, 0 MB in 0 buckets");
}

TEST_CASE("the line says why nothing was hidden, and counts passes under no_sync beside the steps") {
  ReducerStatistics statistics{200, 20'000'000'000, 12, {620ms, 1640ms, 1000ms, 0ms, 1000ms}, true, 200,
                               600, "no free"};
  CHECK(to_string(statistics) ==
        "a step of 200 and 600 passes under no_sync(): forward 3.1 ms, backward 8.2 ms, communication 5 ms (hidden 0 "
        "ms: no free), exposed 5 ms, 100 MB in 12 buckets");
  statistics.times.hidden = 880ms;  // then somebody ran it
  CHECK_CONTAINS(to_string(statistics), "(hidden 4.4 ms)");
}

TEST_CASE("the line says what a hook and a wire type save, and what compressing takes") {
  ReducerStatistics statistics{200, 20'000'000'000, 12, {620ms, 1640ms, 1000ms, 880ms, 120ms}, true, 200};
  const std::string plain = to_string(statistics);
  statistics.hook = {20'000'000'000, 5'000'000'000, 260ms};
  CHECK(to_string(statistics) == plain + ", sent as 25 MB (75 MB saved, compressing 1.3 ms)");
  statistics.hook.bytes_sent = 30'000'000'000;
  statistics.wire = {10'000'000'000, 5'000'000'000, 20ms};
  CHECK(to_string(statistics) == plain +
                                     ", sent as 150 MB (50 MB more, compressing 1.3 ms), on the wire 25 MB (25 MB "
                                     "saved, compressing 0.1 ms)");
}

TEST_CASE("a pass under no_sync counts as the pass that it is, and not as forward") {
  StepMeter meter(1);
  for (int step = 0; step < 3; ++step) {
    for (int pass = 0; pass < 2; ++pass) {
      meter.begin_unreduced();
      std::this_thread::sleep_for(20ms);
      meter.finished_unreduced();
    }
    meter.finished_unreduced();  // without its beginning it is none
    meter.begin();
    meter.waiting();
    meter.finished(false);
  }
  meter.begin_unreduced();  // belongs to a step that does not come
  meter.finished_unreduced();
  CHECK(meter.times().backward >= 6 * 20ms);
  CHECK(meter.times().forward < meter.times().backward);
  CHECK(meter.unreduced_passes() == 6);
}

TEST_CASE("a step leaves its records in order, every ready among them where that is wanted") {
  for (const bool every : {false, true}) {
    CAPTURE(every);
    FakeRank rank({3, 4}, {0, 0}, true, 60s, {.timeline = every});
    for (int repeat = 0; repeat < 2; ++repeat) {
      Step step = rank.reducer->begin();
      step.ready(1);
      step.ready(0);
      step.finish();
    }
    const std::vector<StepRecord> records = rank.reducer->recorder().records();
    using Event = StepEvent;
    CHECK(events_of(records, 2) ==
          (every
               ? std::vector<Event>{Event::begun, Event::ready, Event::launched, Event::ready, Event::launched,
                                    Event::waiting, Event::finished}
               : std::vector<Event>{Event::begun, Event::launched, Event::launched, Event::waiting, Event::finished}));
    CHECK(std::is_sorted(records.begin(), records.end(),
                         [](const StepRecord& a, const StepRecord& b) { return a.time < b.time; }));
  }
}

TEST_CASE("communication before finish is hidden, the rest is not") {
  StepMeter meter(2);
  meter.plan(dtrain::ddp::plan_buckets(std::vector<dtrain::ddp::GradientSize>(2, {4}), dtrain::ddp::BucketCaps{0, 0}));
  for (int step = 0; step < 3; ++step) {
    meter.begin();
    meter.stamp(0, StepEvent::started)();
    std::this_thread::sleep_for(4ms);
    meter.stamp(0, StepEvent::reduced)();
    meter.stamp(1, StepEvent::started)();
    meter.waiting();
    std::this_thread::sleep_for(2ms);
    meter.stamp(1, StepEvent::reduced)();
    meter.finished(true);
    std::this_thread::sleep_for(1ms);
  }
  const dtrain::ddp::StepTimes& times = meter.times();
  CHECK(times.backward >= 12ms);
  CHECK(times.exposed >= 6ms);
  CHECK(times.forward >= 2ms);  // before the first step there is none
  CHECK(times.communication >= 18ms);
  CHECK(times.hidden >= 12ms);
  CHECK(times.communication - times.hidden >= 6ms);
  CHECK(times.communication - times.hidden <= times.exposed);
  CHECK(times.hidden <= times.backward);
}

TEST_CASE("a rank that is alone in summary() says so in the log, and whom it waits for") {
  for (const int alone : {0, 1}) {
    CAPTURE(alone);
    support::CapturedStderr captured;
    const auto job = std::make_shared<support::FakeJob>(2);
    const std::string sentence = "dtrain: rank " + std::to_string(alone) +
                                 ": still waits in summary() or slowest_rank(), which every rank calls, after 0.1 s; " +
                                 (alone == 0 ? "not come so far: rank 1\n" : "no result so far: rank 0 has not come\n");
    bool is_said = false;
    support::run_thread_ranks(2, [&](support::RankThread& self) {
      const dtrain::Deadline deadline = dtrain::Deadline::after(60s);
      while (self.rank() != alone && !is_said && !deadline.passed()) {
        std::this_thread::sleep_for(1ms);
        is_said = captured.text().find(sentence) != std::string::npos;
      }
      static_cast<void>(dtrain::ddp::find_slowest_rank_blocking(*support::FakeGroupHandle::of(job, self.rank(), 2),
                                                                "report", {}, {dtrain::Deadline::after(60s), 100ms}));
    });
    CHECK(is_said);
  }
}

TEST_CASE("every rank learns which rank computes longest") {
  const auto job = std::make_shared<support::FakeJob>(4);
  std::vector<SlowestRank> found(4);
  support::run_thread_ranks(4, [&](support::RankThread& self) {
    ReducerStatistics mine;
    mine.steps = 10;
    mine.times.forward = 10ms;
    mine.times.backward = self.rank() == 2 ? 50ms : 30ms;
    found[static_cast<std::size_t>(self.rank())] =
        dtrain::ddp::find_slowest_rank_blocking(*support::FakeGroupHandle::of(job, self.rank(), 4), "report", mine);
  });
  for (const SlowestRank& slowest : found) {
    CHECK(slowest.rank == 2);
    CHECK(slowest.computing == 6ms);
    CHECK(slowest.typical == 4500us);
  }
  CHECK(to_string(found[0]) == "slowest rank 2 (6 ms a step, mean 4.5 ms)");
  for (int rank = 1; rank < 4; ++rank)  // reports that are made again and again do not fill the store
    CHECK(!support::FakeStore(job, 0).contains("dtrain/report/1/" + std::to_string(rank)));
}
