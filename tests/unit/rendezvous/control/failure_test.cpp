#include "dtrain/rendezvous/client/store_client.hpp"
#include "unit/rendezvous/prelude.hpp"

namespace {

/// `count` ranks of a job, each with its latch.
struct Ranks {
  Ranks(int world_size, int count, std::uint16_t port) : all(static_cast<std::size_t>(count)) {
    errors = on_ranks(count, [&](int rank) {
      all[static_cast<std::size_t>(rank)] = std::make_unique<ControlPlane>(rank_options(rank, world_size, port));
    });
  }
  ControlPlane& operator[](int rank) { return *all.at(static_cast<std::size_t>(rank)); }
  std::vector<std::unique_ptr<ControlPlane>> all;
  std::vector<std::string> errors;
};

}  // namespace

TEST_CASE("a connection that closes is a loss that every rank hears, and every later call throws it") {
  StoreProcess store(3);
  RawClient raw(store.port());
  REQUIRE(raw.enter(2, 3));
  Ranks ranks(3, 2, store.port());
  REQUIRE(ranks.errors == std::vector<std::string>(2));
  std::future<std::string> pending = std::async(std::launch::async, [&]() -> std::string {
    try {
      ranks[0].store().get("never", soon()).wait();
    } catch (const dtrain::PeerLost& error) {
      return "lost rank " + std::to_string(error.lost_rank()) + " on " + error.host();
    }
    return "nothing was thrown";
  });
  raw.close();
  CHECK(pending.get() == "lost rank 2 on raw-host");
  for (const int rank : {0, 1}) {
    const std::string cause = cause_of(*ranks[rank].failure());
    CAPTURE(cause);
    CHECK(cause.find(
              "rank 2 on host raw-host was lost: its process ended, or its connection broke, before it left the job") ==
          0);
    CHECK_THROWS_AS(ranks[rank].store().set("k", "v", soon()).wait(), dtrain::PeerLost);
    CHECK_THROWS_AS(ranks[rank].store().barrier("b", soon()).wait(), dtrain::PeerLost);
    CHECK(ranks[rank].leave_blocking(soon()));
  }
}

TEST_CASE("leaving and then closing is not a loss") {
  std::atomic<int> left{0};
  std::atomic<int> failures{0};
  StoreOptions options = StoreProcess::with_world_size(2);
  options.job.on_left = [&](int) { ++left; };
  options.job.on_failure = [&](const Cause&) { ++failures; };
  StoreProcess store(std::move(options));
  RawClient raw(store.port());
  REQUIRE(raw.enter(1, 2));
  Ranks ranks(2, 1, store.port());
  CHECK(raw.receives<Accepted>());
  CHECK(raw.receives<Welcome>());
  REQUIRE(raw.send_frame(encode(Leave{})));
  CHECK(raw.receives<Left>());
  raw.close();
  ranks[0].store().set("k", "v", soon()).wait();
  CHECK(ranks[0].store().get("k", soon()).wait() == "v");
  CHECK_FALSE(ranks[0].failure()->failed());
  CHECK(ranks[0].leave_blocking(soon()));
  CHECK(store.all_left(soon()));
  CHECK(left == 2);
  CHECK(failures == 0);
}

TEST_CASE("destroying a control plane without leave is a loss for the others") {
  StoreProcess store(2);
  Ranks ranks(2, 2, store.port());
  ranks.all[1].reset();
  CHECK(cause_of(*ranks[0].failure()).find("rank 1 on host ") == 0);
}

TEST_CASE("of many reports at once the first one wins on every rank") {
  constexpr int world_size = 8;
  StoreProcess store(world_size);
  Ranks ranks(world_size, world_size, store.port());
  run_ranks(world_size, [&](int rank) {
    const auto& latch = ranks[rank].failure();
    latch->report(Cause{CauseKind::exception, rank, "h", "report of " + std::to_string(rank)});
    if (cause_of(*latch).empty()) {
      throw std::runtime_error("the latch was not set");
    }
  });
  const std::string first = cause_of(*ranks[0].failure());
  CHECK_CONTAINS(first, "failed: report of ");
  for (int rank = 0; rank < world_size; ++rank) {
    CHECK(cause_of(*ranks[rank].failure()) == first);
  }
}

TEST_CASE("a failure that the launcher posts reaches all, also ranks that are still joining") {
  StoreProcess store(3);
  std::vector<std::string> errors;
  std::jthread joining([&] {
    errors = on_ranks(2, [&](int rank) { const ControlPlane control_plane(rank_options(rank, 3, store.port())); });
  });
  CHECK(support::holds_before(soon(), [&] { return store.connections() >= 2; }));
  store.post_failure(Cause{CauseKind::lost, 2, "host-c", "killed by signal 9"});
  joining.join();
  for (const std::string& error : errors) {
    CHECK(error == "rank 2 on host host-c was lost: killed by signal 9");
  }
  CHECK(error_of_joining(rank_options(2, 3, store.port())) == "rank 2 on host host-c was lost: killed by signal 9");
}

TEST_CASE("within a launcher's grace its cause replaces the bare loss; without one the loss is posted") {
  for (const bool knows_better : {true, false}) {
    StoreOptions options = StoreProcess::with_world_size(2);
    options.limits.rejoin = std::chrono::milliseconds(0);
    options.job.loss_grace = std::chrono::milliseconds(knows_better ? 20000 : 20);
    StoreProcess store(std::move(options));
    RawClient raw(store.port());
    REQUIRE(raw.enter(1, 2));
    Ranks ranks(2, 1, store.port());
    raw.close();
    if (knows_better) {
      store.post_failure(Cause{CauseKind::lost, 1, "h", "killed by signal 9"});
    }
    const std::string cause = cause_of(*ranks[0].failure());
    CHECK_CONTAINS(cause, knows_better ? "killed by signal 9" : "before it left the job (");
  }
}

TEST_CASE("a store that goes away is a failure on every rank that names it") {
  auto store = std::make_unique<StoreProcess>(2);
  const std::string place = "127.0.0.1:" + std::to_string(store->port());
  Ranks ranks(2, 2, store->port());
  store.reset();
  for (const int rank : {0, 1}) {
    const std::string cause = cause_of(*ranks[rank].failure());
    CAPTURE(cause);
    CHECK(cause.find("the job was lost: the store of the job at " + place +
                     " went away: rank 0 or its launcher ended") == 0);
    CHECK_FALSE(ranks[rank].leave_blocking(soon()));
  }
}

TEST_CASE("a store that goes away while ranks join is a failure, not a retry") {
  std::counting_semaphore<> joined{0};
  StoreProcess store(
      2, [&](StoreOptions& options) { options.job.on_joined = [&](int, const std::string&) { joined.release(); }; });
  std::string error;
  std::jthread joining([&] { error = error_of_joining(rank_options(0, 2, store.port())); });
  REQUIRE(joined.try_acquire_for(std::chrono::seconds(30)));
  for (int turn = 0; turn < 3; ++turn) {
    CHECK(store.connections() == 1);  // and meanwhile the store's thread has sent Accepted
  }
  store.stop();
  joining.join();
  CAPTURE(error);
  CHECK(error.find("the job was lost: the store of the job at 127.0.0.1:") == 0);
}

TEST_CASE("rank 0 that hosts the store and fails tells the others its cause before it goes") {
  const std::uint16_t port = free_port();
  std::vector<std::string> heard(3);
  run_ranks(3, [&](int rank) {
    ControlPlaneOptions options = rank_options(rank, 3, port);
    options.hosts_store = rank == 0;
    try {
      ControlPlane control_plane(options);
      if (rank == 0) {
        control_plane.failure()->report(Cause{CauseKind::exception, 0, "h", "it broke"});
      }
      heard[static_cast<std::size_t>(rank)] = cause_of(*control_plane.failure());
    } catch (const dtrain::JobFailed& failed) {  // before it knew that all have joined
      heard[static_cast<std::size_t>(rank)] = failed.what();
    }
  });
  CHECK(heard == std::vector<std::string>(3, "rank 0 on host h failed: it broke"));
}

namespace {

/// The handshake with a rank of a world of one.
dtrain::async::Task<void> welcome_rank(dtrain::net::FrameReader& reader, dtrain::net::FrameWriter& writer,
                                       Accepted answer) {
  dtrain::net::FrameResult received = co_await reader.read_frame(soon());
  const Frame challenge = encode(Challenge{});
  co_await writer.write_frame(challenge, soon());
  received = co_await reader.read_frame(soon());
  const Frame accepted = encode(answer);
  const Frame welcome = encode(Welcome{});
  co_await writer.write_frame(accepted, soon());
  co_await writer.write_frame(welcome, soon());
}

/// Welcomes one rank, and then neither answers nor closes.
dtrain::async::Task<void> frozen_store(dtrain::net::Listener listener) {
  std::optional<dtrain::net::Connection> connection = co_await listener.accept(soon());
  dtrain::net::FrameReader reader(*connection);
  dtrain::net::FrameWriter writer(*connection);
  Accepted answer;
  answer.heartbeat_ms = answer.liveness_ms = 60000;
  dtrain::async::Task<void> welcoming = welcome_rank(reader, writer, answer);
  co_await std::move(welcoming);
  co_await connection->loop().sleep_for(std::chrono::seconds(60));
}

/// Welcomes one rank, and answers every heartbeat at once.
dtrain::async::Task<void> attentive_store(dtrain::net::Listener listener) {
  std::optional<dtrain::net::Connection> connection = co_await listener.accept(soon());
  dtrain::net::FrameReader reader(*connection);
  dtrain::net::FrameWriter writer(*connection);
  Accepted answer;
  answer.liveness_ms = 1000;
  answer.heartbeat_ms = 250;
  dtrain::async::Task<void> welcoming = welcome_rank(reader, writer, answer);
  co_await std::move(welcoming);
  for (bool is_open = true; is_open;) {
    const dtrain::net::FrameResult received = co_await reader.read_frame(soon());
    is_open = received.ok();
    co_await writer.write_frame(heartbeat_frame, soon());
  }
}

dtrain::async::Task<void> set_large(Store store, std::string key) {
  co_await store.set(std::move(key), std::string(max_value_bytes, 'x'), soon());
}

}  // namespace

TEST_CASE("a store that takes nothing: requests are refused when too many bytes wait to be sent") {
  dtrain::async::LoopThread thread;
  ControlPlane control_plane(rank_options(0, 1, start_serving(thread, frozen_store)));
  std::string refusal;
  const auto ask = [&](dtrain::async::EventLoop& loop) -> dtrain::async::Task<void> {
    std::vector<dtrain::async::TaskHandle> tasks;
    const auto keep = [&refusal](const std::exception_ptr& thrown) {
      refusal = sentence_of(Errc::limit, [&] { std::rethrow_exception(thrown); });
    };
    for (int i = 0; i < 100 && refusal.empty(); ++i) {
      tasks.push_back(loop.spawn(set_large(control_plane.store(), "k" + std::to_string(i)), keep));
      co_await loop.sleep_for(std::chrono::milliseconds(0));
    }
  };
  control_plane.control_thread().run_blocking(ask, soon());
  CHECK_CONTAINS(refusal, " bytes wait to be sent to the store; await some requests first");
  CHECK_FALSE(control_plane.failure()->failed());
}

TEST_CASE("a store that does not answer: a report becomes the own cause, and requests time out") {
  dtrain::async::LoopThread thread;
  ControlPlane control_plane(rank_options(0, 1, start_serving(thread, frozen_store)));
  const auto set = [&] { control_plane.store().set("k", "v", Deadline::after(std::chrono::milliseconds(20))).wait(); };
  CHECK(sentence_of(set) == "setting key 'k': the deadline passed and the store does not answer");
  control_plane.failure()->report(Cause{CauseKind::exception, 0, "h", "own"});
  CHECK_FALSE(control_plane.failure()->failed());
  CHECK(cause_of(*control_plane.failure()) == "rank 0 on host h failed: own");
  CHECK_FALSE(control_plane.leave_blocking(Deadline::after(std::chrono::milliseconds(20))));
}

TEST_CASE("a report after the store went away changes nothing, and does not hang") {
  StoreProcess store(1);
  Ranks ranks(1, 1, store.port());
  const auto latch = ranks[0].failure();
  store.stop();
  latch->report(Cause{CauseKind::exception, 0, "h", "own"});
  CHECK_FALSE(cause_of(*latch).empty());  // its own, or that the store went away
  ranks.all.clear();
  latch->report(Cause{CauseKind::exception, 0, "h", "later"});
  CHECK(cause_of(*latch).find("later") == std::string::npos);
}

TEST_CASE("a rank that gets little processor time does not take the store for silent") {
  dtrain::async::LoopThread thread;
  const std::uint16_t port = start_serving(thread, attentive_store);
  dtrain::async::EventLoop loop;
  const auto latch = std::make_shared<dtrain::FailureLatch>();
  const auto starve = [&]() -> dtrain::async::Task<void> {
    dtrain::rendezvous::StoreAddress address;
    address.host = "127.0.0.1";
    address.port = port;
    dtrain::rendezvous::Join join = RawClient::join(0, 1);
    auto joining = dtrain::rendezvous::StoreClient::join(loop, std::move(address), std::move(join), latch, soon());
    const dtrain::rendezvous::StoreClient::Owner client = co_await std::move(joining);
    for (int turn = 0; turn < 6 && !latch->failed(); ++turn) {
      std::this_thread::sleep_for(std::chrono::milliseconds(600));  // what the rank's own threads may take of a quota
      co_await loop.sleep_for(std::chrono::milliseconds(0));
    }
  };
  loop.run_until(starve(), soon());
  CHECK_FALSE(latch->failed());
}
