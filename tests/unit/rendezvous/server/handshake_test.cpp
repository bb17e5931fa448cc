#include "unit/rendezvous/prelude.hpp"

namespace {

Secret secret_a() {
  return Secret::of("0123456789abcdef-a", "a test");
}
Secret secret_b() {
  return Secret::of("0123456789abcdef-b", "a test");
}

StoreOptions with_secret(int world_size) {
  StoreOptions options = StoreProcess::with_world_size(world_size);
  options.secret = secret_a();
  return options;
}

/// Fills a frame's proof in, as somebody who knows `secret` and has seen `transcript` would.
std::vector<std::byte> proved(std::vector<std::byte> frame, const Transcript& transcript, const Secret& secret,
                              ProofSide side = ProofSide::rank) {
  const Proof proof = transcript.proof_for(side, secret, frame);
  std::copy(proof.begin(), proof.end(), frame.end() - sizeof(Proof));
  return frame;
}

Hello secret_hello() {
  Hello hello = RawClient::hello();
  hello.has_secret = true;
  return hello;
}

/// Says hello by hand. @returns what has been said, both frames
Transcript begin_handshake(RawClient& client, const Hello& hello) {
  Transcript transcript;
  transcript.add(encode(hello));
  REQUIRE(client.send_frame(encode(hello)));
  const auto challenge = client.receive_frame();
  REQUIRE(challenge);
  REQUIRE(decode<HandshakeReply>(*challenge));
  transcript.add(*challenge);
  return transcript;
}

std::string refusal(RawClient& client) {
  const auto message = client.receive();
  REQUIRE(message);
  REQUIRE(std::holds_alternative<Refused>(*message));
  return std::get<Refused>(*message).sentence;
}

}  // namespace

TEST_CASE("ranks with the job's secret form, and use the store") {
  StoreProcess store(with_secret(3));
  run_ranks(3, [&](int rank) {
    ControlPlaneOptions options = rank_options(rank, 3, store.port());
    options.secret = secret_a();
    ControlPlane control_plane(options);
    control_plane.store().add("sum", rank, soon()).wait();
    control_plane.store().barrier("all", soon()).wait();
    if (control_plane.store().get("sum", soon()).wait() != "3") {
      throw std::runtime_error("a wrong sum");
    }
    control_plane.leave_blocking(soon());
  });
}

TEST_CASE("another secret, none, and one too many are refused with what to do") {
  StoreProcess guarded(with_secret(1));
  ControlPlaneOptions options = rank_options(0, 1, guarded.port());
  CHECK_CONTAINS(error_of_joining(options), "the job has a secret and this process does not");
  options.secret = secret_b();
  CHECK_CONTAINS(error_of_joining(options), "its secret is not the job's; give all of the job the same DTRAIN_SECRET");
  StoreProcess open(1);
  options = rank_options(0, 1, open.port());
  options.secret = secret_a();
  CHECK_CONTAINS(error_of_joining(options), "this process has the job's secret, and the store requires none");
}

TEST_CASE("the store's own proof cannot be sent back as a rank's") {
  StoreProcess store(with_secret(2));
  RawClient client(store.port());
  const Transcript transcript = begin_handshake(client, secret_hello());
  client.send_frame(proved(encode(RawClient::join(1, 2)), transcript, secret_a(), ProofSide::store));
  CHECK(refusal(client).find("its secret is not the job's") == 0);
  CHECK(client.is_closed());
}

TEST_CASE("a proof that was right once is worth nothing on another connection") {
  StoreProcess store(with_secret(2));
  std::vector<std::byte> recorded;
  {
    RawClient client(store.port());
    const Transcript transcript = begin_handshake(client, secret_hello());
    recorded = proved(encode(RawClient::join(1, 2)), transcript, secret_a());
    client.send_frame(recorded);
    CHECK(client.receives<Accepted>());
  }
  RawClient replaying(store.port());
  begin_handshake(replaying, secret_hello());
  replaying.send_frame(recorded);
  CHECK(refusal(replaying).find("its secret is not the job's") == 0);
}

TEST_CASE("a proof holds for nothing but what was said: every changed bit of the Join is refused") {
  StoreProcess store(with_secret(2));
  const std::size_t bytes = encode(RawClient::join(1, 2)).size();
  for (std::size_t at = 1; at < bytes; at += 7) {
    RawClient client(store.port());
    const Transcript transcript = begin_handshake(client, secret_hello());
    std::vector<std::byte> join = proved(encode(RawClient::join(1, 2)), transcript, secret_a());
    join[at] ^= std::byte{1};
    client.send_frame(join);
    const auto answer = client.receive();
    CAPTURE(at);
    CHECK((!answer || std::holds_alternative<Refused>(*answer)));  // malformed, or not proved
    CHECK(client.is_closed());
  }
}

TEST_CASE("role, attempt and version are bound by the proof") {
  Transcript said;
  said.add(encode(secret_hello()));
  const std::vector<std::byte> join = proved(encode(RawClient::join(1, 2)), said, secret_a());
  REQUIRE(said.is_proved(ProofSide::rank, secret_a(), join));
  Hello launcher = secret_hello();
  launcher.role = ClientRole::launcher;
  Hello later = secret_hello();
  later.attempt = 1;
  Hello older = secret_hello();
  older.version = "0.0.1";
  for (const Frame& hello : {encode(launcher), encode(later), encode(older), encode(secret_hello(), 1)}) {
    Transcript other;
    other.add(hello);
    CHECK_FALSE(other.is_proved(ProofSide::rank, secret_a(), join));
  }
  CHECK_FALSE(said.is_proved(ProofSide::store, secret_a(), join));
  CHECK_FALSE(said.is_proved(ProofSide::rank, secret_b(), join));
  CHECK_FALSE(said.is_proved(ProofSide::rank, secret_a(), std::span(join).first(10)));
}

TEST_CASE("a rank cannot talk a store with a secret down to none, nor a store a rank") {
  StoreProcess store(with_secret(2));
  RawClient client(store.port());
  client.send_frame(encode(RawClient::hello()));
  client.send_frame(encode(RawClient::join(1, 2)));
  CHECK(refusal(client).find("the job has a secret and this process does not") == 0);

  RawClient unproved(store.port());
  begin_handshake(unproved, secret_hello());
  unproved.send_frame(encode(RawClient::join(1, 2)));  // its proof is zeros
  CHECK(refusal(unproved).find("its secret is not the job's") == 0);
}

namespace {

/// Somebody who listens at the store's address and knows no secret: lets everybody in.
dtrain::async::Task<void> pretend(dtrain::net::Listener listener, bool asks) {
  std::optional<dtrain::net::Connection> connection = co_await listener.accept(soon());
  Session session(std::move(*connection));
  co_await session.read_frame(soon());
  const Frame challenge = encode(Challenge{dtrain::random_bytes<16>(), asks});
  co_await session.write_frame(challenge, soon());
  co_await session.read_frame(soon());
  const Frame accepted = encode(Accepted{});
  co_await session.write_frame(accepted, soon());
  co_await session.read_frame(soon());
}

}  // namespace

TEST_CASE("a rank with a secret takes nobody for its store who does not know it") {
  for (const bool asks : {true, false}) {
    dtrain::async::LoopThread thread;
    const std::uint16_t port =
        start_serving(thread, [asks](dtrain::net::Listener listener) { return pretend(std::move(listener), asks); });
    ControlPlaneOptions options = rank_options(1, 2, port);
    options.secret = secret_a();
    const std::string error = error_of_joining(options);
    CHECK_CONTAINS(error, asks ? "does not know the job's secret" : "the store requires none");
  }
}

TEST_CASE("a straggler of an earlier attempt is refused by name, and one that is early waits for its own") {
  StoreProcess store(2, [](StoreOptions& options) { options.job.attempt = 1; });
  ControlPlaneOptions straggler = rank_options(1, 2, store.port());
  const std::string error = error_of_joining(straggler);
  CHECK_CONTAINS(error, "was refused: rank 1 on host ",
                 "belongs to attempt 0 of the job, which has been started again as attempt 1; end what is left");

  std::jthread next([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    StoreJobOptions third;
    third.world_size = 1;
    third.attempt = 2;
    store.open(std::move(third));
  });
  ControlPlaneOptions early = rank_options(0, 1, store.port());
  early.identity.attempt = 2;
  ControlPlane control_plane(early);
  CHECK(control_plane.leave_blocking(soon()));
}

TEST_CASE("keys of an attempt are gone in the next") {
  StoreProcess store(1);
  {
    ControlPlane first(rank_options(0, 1, store.port()));
    first.store().set("key", "of the first", soon()).wait();
    StoreJobOptions next;
    next.world_size = 1;
    next.attempt = 1;
    store.open(std::move(next));
    CHECK_THROWS(first.store().set("late", "value", soon()).wait());
  }
  ControlPlaneOptions options = rank_options(0, 1, store.port());
  options.identity.attempt = 1;
  ControlPlane second(options);
  CHECK_FALSE(second.store().try_get("key", soon()).wait());
  second.leave_blocking(soon());
}

TEST_CASE("where a launcher's port is taken the store is at the next one, and ranks of two jobs find each its own") {
  const std::uint16_t port = free_port();
  dtrain::async::EventLoop loop;
  const auto taken =
      dtrain::net::Listener::bind(loop, dtrain::net::SocketAddress::loopback_v4(port));  // answers nobody
  std::vector<std::string> seen(4);
  run_ranks(4, [&](int index) {
    ControlPlaneOptions options = rank_options(index % 2, 2, port);
    options.master_ports = 16;
    options.identity.job = index < 2 ? "monday" : "tuesday";
    options.hosts_store = options.identity.rank == 0;
    ControlPlane control_plane(options);
    if (options.identity.rank == 0) {
      control_plane.store().set("whose", *options.identity.job, soon()).wait();
    }
    seen[static_cast<std::size_t>(index)] = control_plane.store().get("whose", soon()).wait();
    control_plane.leave_blocking(soon());
  });
  CHECK(seen == std::vector<std::string>{"monday", "monday", "tuesday", "tuesday"});
}

TEST_CASE(
    "a store with a secret at the first of several ports is another job's: ranks without it, or with their own, go "
    "on") {
  StoreProcess other(with_secret(2));
  for (const std::optional<Secret>& secret : {std::optional<Secret>(), std::optional(secret_b())}) {
    CAPTURE(secret.has_value());
    run_ranks(2, [&](int rank) {
      ControlPlaneOptions own_rank = rank_options(rank, 2, other.port());
      own_rank.secret = secret;
      own_rank.master_ports = 16;
      own_rank.hosts_store = rank == 0;
      ControlPlane control_plane(own_rank);
      control_plane.leave_blocking(soon());
    });
  }
}

TEST_CASE("a rank of another job is refused, and so is a launcher where none is expected") {
  StoreProcess store(2, [](StoreOptions& options) { options.job.job = "monday"; });
  ControlPlaneOptions other = rank_options(1, 2, store.port());
  other.identity.job = "tuesday";
  const std::string error = error_of_joining(other);
  CHECK_CONTAINS(error, "belongs to the job 'tuesday', and this is the store of 'monday'");

  RawClient launcher(store.port());
  Hello hello = RawClient::hello();
  hello.role = ClientRole::launcher;
  launcher.send_frame(encode(hello));
  launcher.send_frame(encode(RawClient::join(1, 2)));
  CHECK(refusal(launcher).find("launchers of other nodes join at the launcher of node 0") == 0);
}
