#include "dtrain/backend/block_until_complete.hpp"
#include "support/fake_communicator.hpp"
#include "unit/backend/prelude.hpp"

namespace {

using dtrain::FailureLatch;
using dtrain::stream::host::CommunicationStream;
using dtrain::stream::host::Event;
using support::FakeChannel;
using support::FakeCommunicator;

struct Waiting {
  void wait(std::chrono::nanoseconds timeout) {
    Event event;
    stream.ref().record(event);
    dtrain::backend::block_until_complete(event, communicator, *latch, timeout, 0);
  }

  std::shared_ptr<FailureLatch> latch = std::make_shared<FailureLatch>();
  FakeCommunicator communicator{std::make_shared<FakeChannel>()};
  CommunicationStream stream;
};

TEST_CASE("several operations take one timeout each, whoever runs them") {
  for (const bool helps : {false, true}) {
    CAPTURE(helps);
    Waiting rank;
    if (helps) {
      rank.stream.start_helper();
    }
    std::atomic<int> done{0};
    for (int i = 0; i < 6; ++i) {
      rank.stream.ref().enqueue([&done]() noexcept {
        std::this_thread::sleep_for(600ms);
        ++done;
      });
    }
    CHECK_NOTHROW(rank.wait(1s));
    CHECK(done == 6);
  }
}

TEST_CASE("a stream on which nothing ends within twice the timeout is given up, in a sentence that says so") {
  Waiting rank;
  rank.stream.start_helper();
  support::Gate gate;
  rank.stream.ref().enqueue([&gate]() noexcept { gate.pass(); });
  REQUIRE(gate.is_reached_soon());  // in the helper's thread: who waits would run it else
  const auto error = support::error_of([&] { rank.wait(100ms); });
  CHECK(error.code() == dtrain::Errc::timeout);
  CHECK(std::string(error.what()) ==
        "waiting for the communication stream, which made no progress for 0.2 s, twice the timeout "
        "(DTRAIN_TIMEOUT_SECONDS); is a step of another thread still using it?");
  gate.open();
  CHECK_NOTHROW(rank.wait(20s));
}

TEST_CASE("what made the communicator fail is thrown, and not that its work is late") {
  Waiting rank;
  rank.stream.ref().enqueue([&]() noexcept { rank.latch->set({dtrain::CauseKind::exception, 1, "here", "no more"}); });
  CHECK_THROWS_AS(rank.wait(20s), dtrain::JobFailed);
}

}  // namespace
