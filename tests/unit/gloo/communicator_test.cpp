#include "unit/gloo/prelude.hpp"

#if !DTRAIN_WITH_GLOO

TEST_CASE("collectives over Gloo") {
  dtrain_test::skip("no Gloo was found when this program was built (libgloo-dev)");
}

#else

#include "dtrain/net/interfaces.hpp"
#include "support/communicator_contract.hpp"
#include "support/gate.hpp"
#include "support/slow_peer.hpp"

COMMUNICATOR_CONTRACT(GlooRank)
CROSSED_CHANNELS_CONTRACT(GlooRank)

TEST_CASE("a gather of blocks whose counts differ between ranks fails all ranks, and the sentence names both") {
  communicator_contract::run_opened<GlooRank>(3, [](GlooRank& self, RankThread& thread) {
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
  run_opened_ranks<GlooRank>({3, "group", 300ms}, [&](GlooRank& self, RankThread& thread) {
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

TEST_CASE("ranks whose addresses are of IPv6 reach each other, where this host has one") {
  bool has_one = false;
  for (const dtrain::net::InterfaceAddress& each : dtrain::net::interface_addresses())
    has_one = has_one || each.address.host() == "::1";
  if (!has_one) {
    dtrain_test::skip("this host has no IPv6");
    return;
  }
  const auto job = std::make_shared<FakeJob>(3);
  run_thread_ranks(3, [&](RankThread& thread) {
    auto context = support::channel_context(job, thread.rank(), 3, "group", 10s);
    context.members.named_address = "::1";
    GlooRank self(job->latch(thread.rank()), dtrain::backend::Gloo::open_blocking(context, Deadline::after(60s)));
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

#endif
