#include "support/thread_ranks.hpp"
#include "support/threads_of_this_process.hpp"
#include "unit/stream/prelude.hpp"

namespace {

using support::RankThread;
using support::run_thread_ranks;

/// What an operation of a channel does: it comes, waits for all, and says so when that takes long.
struct Meeting {
  explicit Meeting(int expected_ranks) : expected(expected_ranks) {}

  /// @returns whether all came
  bool meet(StreamRegistry& registry) noexcept {
    ++arrived;
    const Deadline deadline = Deadline::after(60s);
    while (arrived.load() < expected) {
      if (deadline.passed()) return false;
      std::this_thread::sleep_for(1ms);
      registry.run_unattended();
    }
    return true;
  }

  int expected;
  std::atomic<int> arrived{0};
};

/// One rank's streams, and whether all its meetings took place.
struct Rank {
  explicit Rank(std::size_t count) : streams(count) {
    for (CommunicationStream& stream : streams)
      stream.register_with(registry);
  }

  void enqueue(std::size_t stream, Meeting& meeting) {
    streams[stream].ref().enqueue([this, &meeting]() noexcept { well = meeting.meet(*registry) && well; });
  }
  void wait(std::size_t stream) {
    Event event;
    streams[stream].ref().record(event);
    well = event.block_until_complete(Deadline::after(60s)) == WaitResult::complete && well;
  }

  std::shared_ptr<StreamRegistry> registry = std::make_shared<StreamRegistry>();
  std::vector<CommunicationStream> streams;
  std::atomic<bool> well{true};
};

}  // namespace

TEST_CASE("two streams that are waited for in another order on one rank end on both, for 2 and 3 ranks") {
  for (const int ranks : {2, 3}) {
    Meeting a(ranks);
    Meeting b(ranks);
    std::atomic<int> well{0};
    run_thread_ranks(ranks, [&](RankThread& self) {
      Rank rank(2);
      rank.enqueue(0, a);
      rank.enqueue(1, b);
      const std::size_t first = self.rank() == 1 ? 1 : 0;
      rank.wait(first);
      rank.wait(1 - first);
      well += rank.well ? 1 : 0;
    });
    CHECK(well == ranks);
  }
}

TEST_CASE("a circle of streams ends: what a rescuing thread waits for is rescued too") {
  constexpr int ranks = 4;
  std::array<std::unique_ptr<Meeting>, ranks> meetings;
  for (auto& meeting : meetings)
    meeting = std::make_unique<Meeting>(ranks);
  std::atomic<int> well{0};
  run_thread_ranks(ranks, [&](RankThread& self) {
    Rank rank(ranks);
    for (std::size_t stream = 0; stream < ranks; ++stream)
      rank.enqueue(stream, *meetings[stream]);
    for (std::size_t k = 0; k < ranks; ++k)  // each rank begins with another stream
      rank.wait((static_cast<std::size_t>(self.rank()) + k) % ranks);
    well += rank.well ? 1 : 0;
  });
  CHECK(well == ranks);
}

TEST_CASE("work that is enqueued while its rank is stalled already is run too") {
  Meeting a(2);
  Meeting b(2);
  std::atomic<int> well{0};
  run_thread_ranks(2, [&](RankThread& self) {
    Rank rank(2);
    rank.enqueue(0, a);
    if (self.rank() == 0) {
      std::thread late([&] {
        std::this_thread::sleep_for(50ms);
        rank.enqueue(1, b);
      });
      rank.wait(0);
      late.join();
      rank.wait(1);
    } else {
      rank.enqueue(1, b);
      rank.wait(1);
      rank.wait(0);
    }
    well += rank.well ? 1 : 0;
  });
  CHECK(well == 2);
}

TEST_CASE("a stream that is run, or has a helper, or has no work, gets no thread") {
  const auto registry = std::make_shared<StreamRegistry>();
  CommunicationStream empty;
  CommunicationStream helped;
  empty.register_with(registry);
  helped.register_with(registry);
  helped.start_helper();
  CommunicationStream running;
  running.register_with(registry);
  support::Gate gate;
  running.ref().enqueue([&]() noexcept { gate.pass(); });
  Event event;
  running.ref().record(event);
  std::thread waiter([&] { CHECK(event.block_until_complete(Deadline::after(60s)) == WaitResult::complete); });
  CHECK(gate.is_reached_soon());
  std::atomic<std::thread::id> runner{};
  helped.ref().enqueue([&runner]() noexcept { runner = std::this_thread::get_id(); });
  const int before = support::threads_of_this_process();
  for (int i = 0; i < 100; ++i)
    registry->run_unattended();
  CHECK(support::threads_of_this_process() <= before);  // one that has just been joined may still have counted
  CHECK(holds_soon([&] { return runner.load() != std::thread::id(); }));
  gate.open();
  waiter.join();
}

TEST_CASE("a rescuing thread runs what is there, takes no signals, and one that comes later starts anew") {
  const auto registry = std::make_shared<StreamRegistry>();
  CommunicationStream stream;
  stream.register_with(registry);
  std::atomic<int> ran{0};
  std::atomic<int> signals_blocked{0};
  for (int round = 1; round <= 20; ++round) {
    for (int i = 0; i < 3; ++i) {
      stream.ref().enqueue([&]() noexcept {
        sigset_t blocked;
        sigemptyset(&blocked);
        pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
        signals_blocked += sigismember(&blocked, SIGINT);
        ++ran;
      });
    }
    CHECK(holds_soon([&] {
      registry->run_unattended();
      return ran == 3 * round;
    }));
  }
  CHECK(signals_blocked == 60);
}

TEST_CASE("a stream that goes while its work is rescued lets that end and drops the rest") {
  const auto registry = std::make_shared<StreamRegistry>();
  std::atomic<bool> inside{false};
  std::atomic<int> ran{0};
  {
    CommunicationStream stream;
    stream.register_with(registry);
    for (int i = 0; i < 2; ++i) {
      stream.ref().enqueue([&]() noexcept {
        inside = true;
        std::this_thread::sleep_for(50ms);
        ++ran;
      });
    }
    registry->run_unattended();
    CHECK(holds_soon([&] { return inside.load(); }));
  }
  CHECK(ran == 1);
  registry->run_unattended();
}
