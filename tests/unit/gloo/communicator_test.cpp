#include "unit/gloo/prelude.hpp"

#if !DTRAIN_WITH_GLOO

TEST_CASE("collectives over Gloo") {
  dtrain_test::skip("no Gloo was found when this program was built (libgloo-dev)");
}

#else

#include "dtrain/net/interfaces.hpp"
#include "support/block_checks.hpp"
#include "support/collective_checks.hpp"
#include "support/gate.hpp"
#include "support/slow_peer.hpp"

TEST_CASE("every element type and operation is reduced, among 1, 2, 3, 4 and 8 ranks") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    run_ranks<GlooRank>(ranks, [](GlooRank& self, RankThread&) {
      support::check_reductions(self, {1, 99, 30'001}, [](DType, ReduceOp) { return true; });
    });
  }
}

TEST_CASE("every other collective, and messages, among 1, 2, 3, 4 and 8 ranks") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    run_ranks<GlooRank>(ranks, [](GlooRank& self, RankThread&) { support::check_moves(self, {0, 7, 100'003}); });
  }
}

TEST_CASE("blocks of any lengths are exchanged and reduced, among 1, 2, 3, 4 and 5 ranks") {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    run_ranks<GlooRank>(ranks, [](GlooRank& self, RankThread&) { support::check_blocks(self, {0, 7, 100'003}); });
  }
}

TEST_CASE("a gather of blocks whose counts differ between ranks fails all ranks, and the sentence names both") {
  run_ranks<GlooRank>(3, [](GlooRank& self, RankThread& thread) {
    const bool is_root = thread.rank() == 0;
    auto own = self.put(std::vector<float>(thread.rank() == 2 ? 5 : 4));
    auto all = self.put(std::vector<float>(is_root ? 12 : 0));
    const std::vector<std::size_t> counts{4, 4, 4};
    self.communicator.enqueue(
        ExchangeBlocks{dtrain::backend::blocks_of_gather(own.view(), all.view(), counts, 0, {thread.rank(), 3}),
                       own.view(), all.view()},
        self.stream.ref());
    self.communicator.enqueue(Barrier{}, self.stream.ref());
    CHECK_FALSE(self.wait());
    const std::string text = self.communicator.failure().value().text;
    CAPTURE(text);
    CHECK(text.find("rank 2 sends 5 f32 and rank 0 receives 4 f32") != std::string::npos);
  });
}

TEST_CASE("an exchange of blocks in which a rank does not take part ends after the timeout, with its name") {
  std::atomic<int> ended{0};
  run_ranks<GlooRank>({3, "group", 300ms}, [&](GlooRank& self, RankThread& thread) {
    if (thread.rank() == 1) {
      support::holds_soon([&] { return ended == 2; });
      return;
    }
    auto from = self.put(std::vector<float>(6));
    auto to = self.put(std::vector<float>(6));
    self.communicator.enqueue(
        ExchangeBlocks{dtrain::backend::blocks_of_all_to_all(from.view(), {}, to.view(), {}, {thread.rank(), 3}),
                       from.view(), to.view()},
        self.stream.ref());
    CHECK_FALSE(self.wait());
    ++ended;
    const dtrain::Cause cause = self.communicator.failure().value();
    CAPTURE(cause.text);
    CHECK(cause.kind == dtrain::CauseKind::timeout);
    CHECK(cause.text.find("all_to_all of 2 f32 a rank, operation 1 of channel 'group'") != std::string::npos);
    CHECK(cause.text.find("after 300 ms") != std::string::npos);
  });
}

TEST_CASE("floats of 8 bits are carried, and a reduction of them is refused at the call") {
  run_ranks<GlooRank>(2, [&](GlooRank& self, RankThread& thread) {
    std::vector<std::byte> memory(256, static_cast<std::byte>(thread.rank() + 0x7e));
    const BufferView view{memory.data(), memory.size(), DType::f8e4m3, {}};
    const BufferView half{memory.data(), memory.size() / 2, DType::f8e4m3, {}};
    CHECK_THROWS_WITH_AS(self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref()),
                         doctest::Contains("all_reduce of 256 f8e4m3: floats of 8 bits can be moved, and not reduced"),
                         dtrain::Error);
    CHECK_THROWS_AS(
        self.communicator.enqueue(
            ReduceScatter{
                view,
                {memory.data() + half.bytes() * static_cast<std::size_t>(thread.rank()), 128, DType::f8e4m3, {}},
                ReduceOp::sum},
            self.stream.ref()),
        dtrain::Error);
    self.communicator.enqueue(Broadcast{view, 1}, self.stream.ref());
    CHECK(self.wait());
    CHECK(memory == std::vector<std::byte>(256, std::byte{0x7f}));
  });
}

TEST_CASE("splits have channels of their own, which do not wait for their parent's") {
  const int ranks = 4;
  run_ranks<GlooRank>(ranks, [&](GlooRank& self, RankThread& thread) {
    const int color = thread.rank() % 2;
    GlooRank part(self.latch, self.communicator.split_blocking(color, -thread.rank(), Deadline::after(10s)));
    CHECK(part.communicator.size() == 2);
    CHECK(part.communicator.rank() == 1 - thread.rank() / 2);
    std::vector<std::int32_t> whole{thread.rank()};
    std::vector<std::int32_t> half{thread.rank()};
    const BufferView of_whole = dtrain::buffer_view(std::span(whole));
    const BufferView of_half = dtrain::buffer_view(std::span(half));
    self.communicator.enqueue(AllReduce{of_whole, of_whole, ReduceOp::sum}, self.stream.ref());
    part.communicator.enqueue(AllReduce{of_half, of_half, ReduceOp::sum}, part.stream.ref());
    const bool part_first = thread.rank() < 2;  // the other ranks run them the other way round: neither waits
    if (part_first) {
      CHECK(part.wait());
      CHECK(self.wait());
    } else {
      std::thread other([&] { CHECK(self.wait()); });
      CHECK(part.wait());
      other.join();
    }
    CHECK(whole[0] == 6);
    CHECK(half[0] == (color == 0 ? 2 : 4));
  });
}

TEST_CASE("ranks whose addresses are of IPv6 reach each other, where this host has one") {
  bool has_one = false;
  for (const dtrain::net::InterfaceAddress& each : dtrain::net::interface_addresses()) {
    has_one = has_one || each.address.host() == "::1";
  }
  if (!has_one) {
    dtrain_test::skip("this host has no IPv6");
    return;
  }
  const auto job = std::make_shared<FakeJob>(3);
  run_thread_ranks(3, [&](RankThread& thread) {
    auto context = support::channel_context(job, thread.rank(), 3, "group", 10s);
    context.members.named_address = "::1";
    GlooRank self(job->latch(thread.rank()), dtrain::backend::Gloo::open_blocking(context, Deadline::after(10s)));
    std::vector<std::int32_t> values(100'000, thread.rank());
    const BufferView view = dtrain::buffer_view(std::span(values));
    self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
    CHECK(self.wait());
    CHECK(values == std::vector<std::int32_t>(100'000, 3));
  });
}

TEST_CASE("a rank that waits long for messages says in which operation, and goes on when they come") {
  CHECK(support::is_noticed<dtrain::backend::Gloo>(
      "dtrain: rank 0: still waits in all_reduce (sum) of 8 f32, operation 1 of channel 'group': it had not ended "
      "after "));
}

TEST_CASE("a rank in another channel than the one that times out says over messages where it was") {
  CHECK(support::said_when_crossed<dtrain::backend::Gloo>() ==
        "dtrain: rank 1: waited in barrier, operation 1 of channel 'other' when rank 0 timed out\n");
}

#endif
