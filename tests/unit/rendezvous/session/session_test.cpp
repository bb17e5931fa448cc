// ctest: TIMEOUT 120
#include "dtrain/rendezvous/session/session.hpp"
#include "unit/rendezvous/prelude.hpp"

using dtrain_test::CuttingProxy;

namespace {

/// Answers each frame with one of `answer_bytes`.
struct Answering final : SessionHandler {
  bool on_frame(std::span<const std::byte> frame) override {
    ++frames;
    most_waiting = std::max(most_waiting, session->waiting_bytes());
    return answer_bytes == 0 || session->send(Frame(answer_bytes, frame.front()));
  }
  void on_disconnected(const std::string& how) override { end = how; }

  std::shared_ptr<Session> session;
  std::size_t answer_bytes = 0;
  int frames = 0;
  std::size_t most_waiting = 0;  ///< at a frame's arrival
  std::string end;
};

/// A loop with a session, and the session's peer.
struct SessionAndPeer {
  explicit SessionAndPeer(const SessionOptions& options) {
    dtrain::net::Listener listener = dtrain::net::Listener::bind(loop, dtrain::net::SocketAddress::loopback_v4(0));
    peer.emplace(listener.port());
    const auto accept = [&]() -> dtrain::async::Task<void> {
      std::optional<dtrain::net::Connection> accepted = co_await listener.accept(soon());
      handler.session = std::make_shared<Session>(std::move(accepted).value());
    };
    loop.run_until(accept(), soon());
    handler.session->start(handler, options);
  }
  SessionAndPeer(const SessionAndPeer&) = delete;
  SessionAndPeer& operator=(const SessionAndPeer&) = delete;
  ~SessionAndPeer() { handler.session->close(); }

  template <class Condition>
  void run_until(Condition holds) {
    const auto turns = [&]() -> dtrain::async::Task<void> {
      while (!holds()) {
        co_await loop.sleep_for(std::chrono::milliseconds(0));
      }
    };
    loop.run_until(turns(), soon());
  }

  dtrain::async::EventLoop loop;
  std::optional<RawClient> peer;
  Answering handler;
};

}  // namespace

TEST_CASE("a server does not read from a client that leaves its answers unread, and goes on when the client reads") {
  SessionOptions options;
  options.is_server = true;
  options.outgoing_bytes = std::size_t{16} << 20;
  SessionAndPeer both(options);
  both.handler.answer_bytes = std::size_t{64} << 10;
  constexpr int requests = 1000;  // whose answers are far more than sockets hold
  for (int i = 0; i < requests; ++i) {
    REQUIRE(both.peer->send_frame({std::byte{77}}));
  }
  both.run_until([&] { return both.handler.session->is_paused(); });
  CHECK(both.handler.frames < requests);
  std::size_t answers = 0;
  both.run_until([&] {
    answers += both.peer->has_more() ? both.peer->frames_of_one_read() : 0;
    return answers == requests;
  });
  CHECK(both.handler.frames == requests);
  CHECK(both.handler.most_waiting <= options.outgoing_bytes / 16);
  CHECK(both.handler.session->is_open());
}

TEST_CASE("a client reads at all times, however much it has to send") {
  SessionOptions options;
  options.outgoing_bytes = std::size_t{16} << 20;
  SessionAndPeer both(options);
  while (both.handler.session->send(Frame(std::size_t{64} << 10))) {
  }
  REQUIRE(both.peer->send_frame({std::byte{77}}));
  both.run_until([&] { return both.handler.frames == 1; });
  CHECK_FALSE(both.handler.session->is_paused());
}

TEST_CASE("a server that sends but takes nothing is not lost for its client; one that does neither is") {
  const auto goes_on = [](std::chrono::milliseconds send, const char* end) {
    SessionOptions options;
    options.outgoing_bytes = std::size_t{16} << 20;
    options.send = send;
    SessionAndPeer both(options);
    while (both.handler.session->send(Frame(std::size_t{64} << 10))) {
    }
    const auto began = dtrain::Deadline::Clock::now();
    while (both.handler.end.empty() && dtrain::Deadline::Clock::now() - began < 3 * send) {
      const int before = both.handler.frames;
      REQUIRE(both.peer->send_frame({std::byte{77}}));
      both.run_until([&] { return both.handler.frames > before || !both.handler.end.empty(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const bool is_open = both.handler.end.empty();
    both.run_until([&] { return !both.handler.end.empty(); });
    CHECK(both.handler.end == end);
    return is_open;
  };
  const bool is_open = goes_on(std::chrono::milliseconds(1500), "it took nothing for 1.5 s") ||
                       goes_on(std::chrono::milliseconds(5000), "it took nothing for 5.0 s");  // a thread did not run
  CHECK(is_open);
}

TEST_CASE("a peer that sends many frames at once leaves the loop's other tasks their turns") {
  SessionOptions options;
  options.is_server = true;
  SessionAndPeer both(options);
  constexpr int frames = 20'000;
  std::vector<std::byte> bytes;
  for (int i = 0; i < frames; ++i) {
    const std::vector<std::byte> frame = RawClient::framed({std::byte{77}});
    bytes.insert(bytes.end(), frame.begin(), frame.end());
  }
  REQUIRE(both.peer->send(bytes));
  int before = 0;
  int most = 0;
  both.run_until([&] {
    most = std::max(most, both.handler.frames - before);
    before = both.handler.frames;
    return both.handler.frames == frames;
  });
  CHECK(most <= 512);
}

TEST_CASE("a session takes no more than its bound to be sent, and what it has refused is not sent") {
  SessionOptions options;
  options.outgoing_bytes = 40;
  SessionAndPeer both(options);
  CHECK(both.handler.session->send(Frame(30, std::byte{1})));
  CHECK_FALSE(both.handler.session->send(Frame(11, std::byte{2})));
  CHECK(both.handler.session->send(Frame(10, std::byte{3})));
  CHECK(both.handler.session->waiting_bytes() == 40);
  both.run_until([&] { return both.handler.session->waiting_bytes() == 0; });
  CHECK(both.handler.session->send(Frame(40, std::byte{4})));
  both.run_until([&] { return both.handler.session->waiting_bytes() == 0; });
  CHECK(both.peer->receive_frame() == Frame(30, std::byte{1}));
  CHECK(both.peer->receive_frame() == Frame(10, std::byte{3}));
  CHECK(both.peer->receive_frame() == Frame(40, std::byte{4}));
}

TEST_CASE("frames that arrived before the connection broke are read, though writing fails first") {
  SessionAndPeer both(SessionOptions{});
  REQUIRE(both.handler.session->send(Frame(1)));
  both.run_until([&] { return both.peer->has_more(); });  // both tasks of the session wait
  for (int i = 0; i < 3; ++i) {
    REQUIRE(both.peer->send_frame({std::byte{77}}));
  }
  both.peer->reset();
  REQUIRE(both.handler.session->send(Frame(1)));  // its writer is woken before its reader
  both.run_until([&] { return !both.handler.end.empty(); });
  CHECK(both.handler.frames == 3);
  CHECK(both.handler.end == "Connection reset by peer");
  CHECK_FALSE(both.handler.session->is_open());
  CHECK(both.handler.session->send(Frame(1)));  // nobody misses it
  CHECK(both.handler.session->waiting_bytes() == 0);
}

namespace {

/// In which nobody may join again: the loss of a rank is known at once or never.
StoreOptions without_grace(int world_size) {
  StoreOptions options = StoreProcess::with_world_size(world_size);
  options.limits.rejoin = options.job.loss_grace = std::chrono::milliseconds(0);
  options.limits.liveness = std::chrono::hours(1);
  return options;
}

}  // namespace

TEST_CASE("a connection that is cut is the loss of its rank, which all other ranks learn at once") {
  for (const CuttingProxy::How how : {CuttingProxy::How::reset, CuttingProxy::How::end}) {
    StoreOptions options = without_grace(3);
    options.limits.rejoin = std::chrono::hours(1);  // which is for a rank that was not heard of
    StoreProcess store(options);
    CuttingProxy proxy(store.port());
    std::vector<std::string> causes(3);
    run_ranks(3, [&](int rank) {
      ControlPlane control_plane(rank_options(rank, 3, rank == 2 ? proxy.port() : store.port()));
      control_plane.store().barrier("all are heard of", soon()).wait();
      if (rank == 2) {
        proxy.cut(how);
      }
      causes[static_cast<std::size_t>(rank)] = cause_of(*control_plane.failure());
    });
    CAPTURE(causes[2]);
    CHECK(causes[2].find("the job was lost: the store of the job at 127.0.0.1:") == 0);
    for (const int other : {0, 1}) {
      CAPTURE(causes[static_cast<std::size_t>(other)]);
      CHECK(causes[static_cast<std::size_t>(other)].find("rank 2 on host ") == 0);
      CHECK(causes[static_cast<std::size_t>(other)].find(
                " was lost: its process ended, or its connection broke, before it left the job (") !=
            std::string::npos);
    }
    CHECK(proxy.accepted() == 1);  // and nobody came again
  }
}

TEST_CASE("a connection that breaks inside a frame is the loss of its rank, and nothing of the frame counts") {
  StoreOptions options = without_grace(2);
  StoreProcess store(options);
  RawClient raw(store.port());
  REQUIRE(raw.enter(1, 2));
  ControlPlane control_plane(rank_options(0, 2, store.port()));
  std::vector<std::byte> frame =
      RawClient::framed(encode(Request(1, RequestKind::set, {"half"}, std::string(1000, 'x'))));
  frame.pop_back();
  REQUIRE(raw.send(frame));
  raw.close();
  const std::string cause = cause_of(*control_plane.failure());
  CAPTURE(cause);
  CHECK(cause.find("rank 1 on host raw-host was lost: ") == 0);
  CHECK(store.contents().first == 0);
}

TEST_CASE("what a rank said before its connection broke counts: its cause, not its loss") {
  StoreOptions options = without_grace(2);
  StoreProcess store(options);
  RawClient raw(store.port());
  REQUIRE(raw.enter(1, 2));
  ControlPlane control_plane(rank_options(0, 2, store.port()));
  REQUIRE(raw.send_frame(encode(FailureReport{Cause{CauseKind::exception, 1, "raw-host", "no such file"}})));
  raw.reset();
  CHECK(cause_of(*control_plane.failure()) == "rank 1 on host raw-host failed: no such file");
}

TEST_CASE("a rank that says nothing is lost after the liveness time, though its connection stands") {
  StoreProcess store(2, [](StoreOptions& options) { options.limits.liveness = std::chrono::milliseconds(400); });
  RawClient silent(store.port());
  REQUIRE(silent.enter(1, 2));
  std::string cause;
  try {
    const ControlPlane control_plane(rank_options(0, 2, store.port()));
    cause = cause_of(*control_plane.failure());
  } catch (const std::exception& error) {
    cause = error.what();  // rank 0 had not joined within the liveness time
  }
  CAPTURE(cause);
  CHECK(cause.find("rank 1 on host raw-host was lost: it has sent nothing for 0.4 s") == 0);
}

TEST_CASE("a rank that was silent before its connection ended is said to have been silent") {
  StoreProcess store(2, [](StoreOptions& options) { options.limits.liveness = std::chrono::milliseconds(4000); });
  RawClient starved(store.port());
  REQUIRE(starved.enter(1, 2));
  ControlPlane control_plane(rank_options(0, 2, store.port()));
  std::this_thread::sleep_for(std::chrono::milliseconds(3000));  // above half the liveness time, or all of it
  starved.close();
  const std::string cause = cause_of(*control_plane.failure());
  CAPTURE(cause);
  CHECK(cause.find("rank 1 on host raw-host was lost: it has sent nothing for ") == 0);
  CHECK_CONTAINS(cause, "too little processor time", "DTRAIN_LIVENESS_SECONDS");
  CHECK(cause.find("its process ended") == std::string::npos);
}

TEST_CASE("ranks that only wait are not silent") {
  const auto stay = [](std::chrono::milliseconds liveness) {
    StoreProcess store(3, [&](StoreOptions& options) { options.limits.liveness = liveness; });
    const auto errors = on_ranks(3, [&](int rank) {
      ControlPlane control_plane(rank_options(rank, 3, store.port()));
      std::this_thread::sleep_for(liveness * 5 / 2);
      control_plane.store().barrier("after", soon()).wait();
      control_plane.leave_blocking(soon());
    });
    return errors == std::vector<std::string>(3);
  };
  const bool stayed = stay(std::chrono::seconds(1)) || stay(std::chrono::seconds(5));  // a thread did not run
  CHECK(stayed);
}

TEST_CASE("a path that loses everything is noticed by both sides") {
  StoreProcess store(2, [](StoreOptions& options) { options.limits.liveness = std::chrono::milliseconds(2000); });
  CuttingProxy proxy(store.port());
  const auto ranks = two_ranks(store, proxy);
  proxy.hold(true);
  CHECK_CONTAINS(cause_of(*ranks[0]->failure()), "was lost: it has sent nothing for 2.0 s");
  CHECK_CONTAINS(cause_of(*ranks[1]->failure()), "went away");
  proxy.hold(false);
}
