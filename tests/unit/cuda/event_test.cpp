#include "dtrain/stream/cuda/event.hpp"
#include "unit/cuda/prelude.hpp"

TEST_CASE("a CUDA event that was never recorded is complete") {
  const Event event;
  CHECK(event.is_complete());
  CHECK(event.block_until_complete(Deadline::after(0s)) == WaitResult::complete);
}

TEST_CASE("a CUDA event completes when the work before it has, and recording it again moves it") {
  const Stream stream;
  std::atomic<int> ran{0};
  Event event;
  for (int round = 1; round <= 2; ++round) {
    Gate gate;
    support::enqueue_on_host(stream.ref(), [&] {
      gate.pass();
      ++ran;
    });
    stream.ref().record(event);
    CHECK_FALSE(event.is_complete());
    gate.open();
    REQUIRE(event.block_until_complete(soon()) == WaitResult::complete);
    CHECK(ran == round);
    CHECK(event.is_complete());
  }
}

TEST_CASE("waiting for a CUDA event gives up at its deadline") {
  const Stream stream;
  Event event;
  Gate gate;
  support::enqueue_on_host(stream.ref(), [&] { gate.pass(); });
  stream.ref().record(event);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(event.block_until_complete(Deadline::after(20ms)) == WaitResult::timed_out);
  CHECK(std::chrono::steady_clock::now() - begin >= 20ms);
  gate.open();
  CHECK(event.block_until_complete(soon()) == WaitResult::complete);
}

TEST_CASE("a CUDA event keeps its point when it is moved") {
  const Stream stream;
  Event first;
  support::enqueue_delay(stream.ref(), 20ms);
  stream.ref().record(first);
  Event second = std::move(first);
  CHECK(first.is_complete());  // NOLINT(bugprone-use-after-move): one that has no point is complete
  CHECK_FALSE(second.is_complete());
  Event third;
  third = std::move(second);
  CHECK(third.block_until_complete(soon()) == WaitResult::complete);
}

TEST_CASE("one CUDA stream waits for an event of another, and the host does not block") {
  const Stream first;
  const Stream second;
  Gate gate;
  int value = 0;  // ordered by the event alone
  int seen = 0;
  support::enqueue_on_host(first.ref(), [&] {
    gate.pass();
    value = 7;
  });
  Event written;
  first.ref().record(written);
  second.ref().wait(written);
  support::enqueue_on_host(second.ref(), [&] { seen = value; });
  Event read;
  second.ref().record(read);
  CHECK_FALSE(read.is_complete());
  gate.open();
  REQUIRE(read.block_until_complete(soon()) == WaitResult::complete);
  CHECK(seen == 7);
}
