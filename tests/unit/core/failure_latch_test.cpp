#include "unit/core/prelude.hpp"

namespace {

Cause failed(int rank, const std::string& text) {
  return {CauseKind::exception, rank, "host-a", text};
}

}  // namespace

TEST_CASE("the first cause stays, and a later one is told that it was not the first") {
  const auto latch = std::make_shared<FailureLatch>();
  CHECK_FALSE(latch->failed());
  CHECK_FALSE(latch->cause().has_value());
  CHECK(latch->set(failed(1, "first")));
  CHECK_FALSE(latch->set(failed(2, "second")));
  CHECK(latch->cause().value().text == "first");
}

TEST_CASE("every callback hears the cause once: at the failure, or at once when it comes late") {
  const auto latch = std::make_shared<FailureLatch>();
  std::vector<std::string> heard;
  const auto early = latch->subscribe([&](const Cause& cause) { heard.push_back("early " + cause.text); });
  latch->set(failed(0, "x"));
  latch->set(failed(0, "y"));
  const auto late = latch->subscribe([&](const Cause& cause) { heard.push_back("late " + cause.text); });
  CHECK(heard == std::vector<std::string>{"early x", "late x"});
}

TEST_CASE("a subscription that is gone hears nothing") {
  const auto latch = std::make_shared<FailureLatch>();
  int calls = 0;
  {
    const auto gone = latch->subscribe([&](const Cause&) { ++calls; });
  }
  auto kept = latch->subscribe([&](const Cause&) { calls += 10; });
  auto moved = std::move(kept);
  latch->set(failed(0, "x"));
  CHECK(calls == 10);
}

TEST_CASE("a report goes to the reporter where there is one, else it is set") {
  const auto latch = std::make_shared<FailureLatch>();
  std::string reported;
  latch->set_reporter([&](const Cause& cause) { reported = cause.text; });
  latch->report(failed(0, "to the store"));
  CHECK(reported == "to the store");
  CHECK_FALSE(latch->failed());
  latch->set_reporter({});
  latch->report(failed(0, "alone"));
  CHECK(latch->cause().value().text == "alone");
}

TEST_CASE("who waits is woken by the failure, and gives up at the deadline without one") {
  const auto latch = std::make_shared<FailureLatch>();
  CHECK_FALSE(latch->block_until_failed(Deadline::after(5ms)));
  std::thread other([&] { latch->set(failed(3, "x")); });
  CHECK(latch->block_until_failed(Deadline::after(60s)));
  other.join();
}

TEST_CASE("of many threads that fail at once exactly one is first, and all listeners hear that one") {
  const auto latch = std::make_shared<FailureLatch>();
  std::atomic<int> firsts{0};
  std::string heard;
  const auto callback = latch->subscribe([&](const Cause& cause) { heard += cause.text; });
  support::on_threads(
      4, [&](std::size_t rank) { firsts += latch->set(failed(static_cast<int>(rank), std::to_string(rank))) ? 1 : 0; });
  CHECK(firsts == 1);
  CHECK(heard == latch->cause().value().text);
}

TEST_CASE("a lost rank is thrown as PeerLost, another's failure as JobFailed, an own one as its own Error") {
  const auto lost = std::make_shared<FailureLatch>();
  lost->throw_if_failed(0);
  lost->set({CauseKind::lost, 1, "host-a", "its connection closed"});
  CHECK_THROWS_AS(lost->throw_if_failed(0), dtrain::PeerLost);

  const auto thrown = std::make_shared<FailureLatch>();
  thrown->set(failed(1, "disk full"));
  CHECK_THROWS_WITH_AS(thrown->throw_if_failed(0), "rank 1 on host host-a failed: disk full", dtrain::JobFailed);
  try {
    thrown->throw_if_failed(1);
    FAIL("nothing was thrown");
  } catch (const dtrain::JobFailed&) {
    FAIL("the origin was told that another rank failed");
  } catch (const dtrain::Error& error) {
    CHECK(error.rank() == 1);
  }
}
