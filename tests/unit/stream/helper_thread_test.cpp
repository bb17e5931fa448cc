#include "unit/stream/prelude.hpp"

namespace {

TEST_CASE("a helper thread runs work that nobody waits for") {
  Queue queue;
  const HelperThread helper(queue);
  std::atomic<int> ran{0};
  for (int i = 1; i <= 20; ++i) {
    queue.ref().enqueue([&ran]() noexcept { ++ran; });
    CHECK(holds_soon([&] { return ran == i; }));
  }
}

TEST_CASE("a helper thread runs what a waiter left behind") {
  Queue queue;
  const HelperThread helper(queue);
  std::atomic<int> ran{0};
  for (int round = 0; round < 200; ++round) {
    const int before = ran;
    Event first;
    queue.ref().enqueue([&ran]() noexcept { ++ran; });
    queue.ref().record(first);
    queue.ref().enqueue([&ran]() noexcept { ++ran; });
    CHECK(first.block_until_complete(Deadline::after(60s)) == WaitResult::complete);
    CHECK(holds_soon([&] { return ran == before + 2; }));
  }
}

TEST_CASE("what producers wrote is seen by the helper, and what it wrote by waiters, without a lock") {
  Queue queue;
  const HelperThread helper(queue);
  int value = 0;
  for (int i = 0; i < 2000; ++i) {
    ++value;
    queue.ref().enqueue([&value]() noexcept { ++value; });
    Event event;
    queue.ref().record(event);
    CHECK(event.block_until_complete(Deadline::after(60s)) == WaitResult::complete);
    CHECK(value == 2 * i + 2);
  }
}

TEST_CASE("a helper thread that stops ends its work and leaves the rest to waiters") {
  CommunicationStream stream;
  support::Gate gate;
  std::atomic<int> ran{0};
  stream.start_helper();
  stream.start_helper();
  CHECK(stream.has_helper());
  stream.ref().enqueue([&]() noexcept {
    gate.pass();
    ++ran;
  });
  CHECK(gate.is_reached_soon());
  stream.ref().enqueue([&ran]() noexcept { ++ran; });
  std::thread releaser([&] {
    std::this_thread::sleep_for(20ms);
    gate.open();
  });
  stream.stop_helper();
  releaser.join();
  CHECK_FALSE(stream.has_helper());
  CHECK(ran == 1);
  Event event;
  stream.ref().record(event);
  CHECK(event.block_until_complete(Deadline::after(60s)) == WaitResult::complete);
  CHECK(ran == 2);
}

TEST_CASE("an idle helper thread stops at once") {
  for (int i = 0; i < 50; ++i) {
    CommunicationStream stream;
    stream.start_helper();
    if (i % 2 == 0) {
      std::this_thread::sleep_for(1ms);  // parked by now
    }
  }
}

}  // namespace
