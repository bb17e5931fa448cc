#include "unit/rendezvous/prelude.hpp"

namespace {

std::vector<std::byte> random_bytes(std::mt19937& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random() & 0xffU);
  }
  return bytes;
}

void form_and_leave(StoreProcess& store, int world_size) {
  run_ranks(world_size, [&](int rank) { join_and_leave(rank_options(rank, world_size, store.port())); });
}

}  // namespace

TEST_CASE("silent, partial, garbage and gigantic clients do not keep a job from forming") {
  StoreOptions options = StoreProcess::with_world_size(3);
  options.limits.pending_connections = 8;
  options.limits.handshake = std::chrono::milliseconds(20000);
  StoreProcess store(std::move(options));
  std::mt19937 random(7);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(std::make_unique<RawClient>(store.port()));
    REQUIRE(clients.back()->connected());
    switch (i % 5) {
      case 0: break;                                                                            // silent
      case 1: clients.back()->send({std::byte{9}, std::byte{0}}); break;                        // half a length
      case 2: clients.back()->send(random_bytes(random, 200)); break;                           // garbage
      case 3: clients.back()->send(RawClient::framed({}, 0xffffffffU)); break;                  // 4 GiB announced
      default: clients.back()->send(RawClient::framed(random_bytes(random, 20), 2000)); break;  // and no more
    }
  }
  form_and_leave(store, 3);
  CHECK(store.all_left(soon()));
  CHECK(store.connections() <= 8 + 3);
  CHECK(clients.front()->is_closed());  // the oldest went first
}

TEST_CASE("ranks that have said hello are not pushed out by those that connect at the same moment") {
  constexpr int world_size = 16;
  dtrain::async::EventLoop loop;
  dtrain::net::Listener listener = dtrain::net::Listener::bind(loop, dtrain::net::SocketAddress::loopback_v4(0));
  const std::uint16_t port = listener.port();
  StoreOptions options = StoreProcess::with_world_size(world_size);
  options.limits.pending_connections = 4;
  StoreServer server(loop, std::move(listener), ServerOptions{{}, options.limits});
  const JobServer& job = server.open(std::move(options.job));
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int rank = 0; rank < world_size; ++rank) {  // all before the server has accepted any
    clients.push_back(std::make_unique<RawClient>(port));
    REQUIRE(clients.back()->connected());
    REQUIRE(clients.back()->enter(rank, world_size));
  }
  const auto serve = [&job](dtrain::async::EventLoop& on) -> dtrain::async::Task<void> {
    for (int i = 0; i < 500 && job.sessions() < world_size; ++i) {
      co_await on.sleep_for(std::chrono::milliseconds(1));
    }
    co_await on.sleep_for(std::chrono::milliseconds(50));
  };
  loop.run_until(serve(loop), soon());
  for (const auto& client : clients) {
    CHECK(client->receives<Accepted>());
  }
}

TEST_CASE(
    "many clients that send Hello and stay push out neither a client that has not been served yet nor one that was") {
  StoreOptions options = StoreProcess::with_world_size(2);
  options.limits.pending_connections = 16;
  options.limits.handshake = std::chrono::milliseconds(120000);
  StoreProcess store(std::move(options));
  std::vector<std::unique_ptr<RawClient>> clients;
  const auto silent_stranger = [&] {
    clients.push_back(std::make_unique<RawClient>(store.port()));
    REQUIRE(clients.back()->connected());
  };
  const auto send_hello = [&] {  // once it has its challenge, all who connected before it have been accepted
    silent_stranger();
    REQUIRE(clients.back()->send_frame(encode(RawClient::hello())));
    REQUIRE(clients.back()->receive_frame());
  };
  for (int i = 0; i < 32; ++i) {
    send_hello();
  }
  RawClient rank(store.port());
  RawClient other(store.port());
  REQUIRE(other.send_frame(encode(RawClient::hello())));
  REQUIRE(other.receive_frame());
  for (int i = 0; i < 6; ++i) {
    silent_stranger();
  }
  send_hello();
  REQUIRE(rank.enter(0, 2));
  CHECK(rank.receives<Accepted>());
  for (int i = 0; i < 40; ++i) {
    silent_stranger();
  }
  send_hello();
  REQUIRE(other.send_frame(encode(RawClient::join(1, 2))));
  CHECK(other.receives<Accepted>());
}

TEST_CASE("a client that says nothing is closed after the handshake's time") {
  StoreProcess store(1, [](StoreOptions& options) { options.limits.handshake = std::chrono::milliseconds(50); });
  RawClient silent(store.port());
  RawClient half(store.port());
  half.send(RawClient::framed({std::byte{1}}, 100));
  CHECK(silent.is_closed());
  CHECK(half.is_closed());
  form_and_leave(store, 1);
}

TEST_CASE("a hello that is too long, empty, or of another program is closed without an answer") {
  StoreProcess store(1);
  for (const auto& frame : {RawClient::framed(std::vector<std::byte>(max_handshake_bytes + 1)), RawClient::framed({}),
                            RawClient::framed(encode(Leave{})), RawClient::framed(encode(Hello{}), 3)}) {
    RawClient client(store.port());
    client.send(frame);
    CHECK_FALSE(client.receive());
    CHECK(client.is_closed());
  }
  RawClient http(store.port());
  const std::string get = "GET / HTTP/1.1\r\n\r\n";
  http.send(
      {reinterpret_cast<const std::byte*>(get.data()), reinterpret_cast<const std::byte*>(get.data()) + get.size()});
  CHECK(http.is_closed());
  form_and_leave(store, 1);
}

TEST_CASE(
    "another version is refused with a sentence and closed: an older one, whose sessions could resume, and a newer") {
  StoreProcess store(1);
  for (const int other : {3, 9}) {
    RawClient client(store.port());
    client.send_frame(encode(RawClient::hello(), static_cast<std::uint16_t>(other)));
    const auto message = client.receive();
    REQUIRE(message);
    const std::string version = dtrain::version_text;
    CHECK(std::get<Refused>(*message).sentence == "this process runs dtrain " + version + " (protocol " +
                                                      std::to_string(other) + "), the job dtrain " + version +
                                                      " (protocol 7); run one build on all ranks");
    CHECK(client.is_closed());
  }
  form_and_leave(store, 1);
}

TEST_CASE("a rank that sends what is no message is lost, and the others receive the cause") {
  for (const bool gigantic : {false, true}) {
    StoreProcess store(2);
    RawClient raw(store.port());
    REQUIRE(raw.enter(1, 2));
    ControlPlane control_plane(rank_options(0, 2, store.port()));
    CHECK(raw.receives<Accepted>());
    CHECK(raw.receives<Welcome>());
    raw.send(gigantic ? RawClient::framed({}, 0x7fffffffU) : RawClient::framed({std::byte{77}}));
    const std::string cause = cause_of(*control_plane.failure());
    CAPTURE(cause);
    CHECK(cause.find("rank 1 on host raw-host was lost") == 0);
    CHECK_CONTAINS(cause, gigantic ? "the peer announced a frame of" : "do not follow the protocol");
    CHECK(raw.is_closed());
  }
}

TEST_CASE("a rank that does not read its answers is lost, and keeps nobody waiting") {
  StoreOptions options = StoreProcess::with_world_size(2);
  options.limits.outgoing_bytes = std::size_t{8} << 20;
  options.limits.send = std::chrono::milliseconds(500);
  StoreProcess store(std::move(options));
  RawClient raw(store.port());
  REQUIRE(raw.enter(1, 2));
  ControlPlane control_plane(rank_options(0, 2, store.port()));
  control_plane.store().set("large", std::string(max_value_bytes, 'x'), soon()).wait();
  for (std::uint64_t id = 1; id <= 64; ++id) {
    Request request;
    request.id = id;
    request.kind = RequestKind::get;
    request.keys = {"large"};
    raw.send_frame(encode(request));
  }
  const std::string cause = cause_of(*control_plane.failure());
  CAPTURE(cause);
  CHECK(cause.find("rank 1 on host raw-host was lost") == 0);
}

namespace {

dtrain::async::Task<void> answer_once(dtrain::net::Listener listener, Frame answer) {
  std::optional<dtrain::net::Connection> connection = co_await listener.accept(soon());
  dtrain::net::FrameWriter writer(*connection);
  co_await writer.write_frame(answer, soon());
  co_await listener.accept(soon());
}

/// The error of a rank to which what listens at its store's address answers so.
std::string error_after(const Frame& answer) {
  dtrain::async::LoopThread thread;
  const auto serve = [&](dtrain::net::Listener listener) { return answer_once(std::move(listener), answer); };
  return error_of_joining(rank_options(1, 2, start_serving(thread, serve)));
}

}  // namespace

TEST_CASE("what answers but is no store is named as such") {
  CHECK_CONTAINS(error_after(Frame(20, std::byte{200})), "what listens there is no store of dtrain's");
}

TEST_CASE("the answer of another program, and a program that answers nothing, are called no store") {
  const std::string answer = "HTTP/1.1 400 Bad Request\r\n\r\n";
  dtrain::async::LoopThread thread;
  const auto serve = [&](dtrain::net::Listener listener) { return answer_all(std::move(listener), answer); };
  ControlPlaneOptions rank = rank_options(1, 2, start_serving(thread, serve));
  rank.timeout = std::chrono::seconds(1);
  CHECK_CONTAINS(error_of_joining(rank),
                 "the deadline passed; what answers there is another program, and no store of "
                 "dtrain's; check that MASTER_ADDR and MASTER_PORT");
  rank.identity.master_port = start_serving(thread, &rendezvous_test::take_in_silence);
  CHECK_CONTAINS(error_of_joining(rank),
                 "the deadline passed; what listens there took the connection and does not "
                 "answer: it is another program, or a store of dtrain's whose process is "
                 "stopped; check that MASTER_ADDR and MASTER_PORT");
}

TEST_CASE("a job whose rank is missing says which process its store refused, and why") {
  StoreOptions options = StoreProcess::with_world_size(2);
  StoreProcess store(std::move(options));
  RawClient other(store.port());
  Hello hello = RawClient::hello();
  hello.version = "0.0.1";
  REQUIRE(other.send_frame(encode(hello)));
  REQUIRE(other.receives<Refused>());
  ControlPlaneOptions rank = rank_options(0, 2, store.port());
  rank.timeout = std::chrono::seconds(1);
  CHECK_CONTAINS(error_of_joining(rank), "rank 1 did not",
                 "(a process was refused: one at 127.0.0.1, to which the store said: this process runs dtrain 0.0.1");
}

TEST_CASE("the refusal of a store of an older version, whose form no version changes, is a rank's error") {
  const std::string sentence =
      "this process runs dtrain 0.2.0 (protocol 4), the job dtrain 0.1.0 (protocol 3); run one build on all ranks";
  Frame refused{std::byte{3}};  // the kind; then the text's length, the text, and whether the store is another job's
  for (std::size_t i = 0; i < 4; ++i) {
    refused.push_back(static_cast<std::byte>((sentence.size() >> (8 * i)) & 0xff));
  }
  for (const char each : sentence) {
    refused.push_back(static_cast<std::byte>(each));
  }
  refused.push_back(std::byte{0});
  CHECK_CONTAINS(error_after(refused), "as rank 1 was refused: " + sentence);
}

TEST_CASE("what closes without an answer is tried again until the deadline, which says so") {
  StoreOptions options = StoreProcess::with_world_size(2);
  options.limits.handshake = std::chrono::milliseconds(0);  // nobody is fast enough
  StoreProcess store(std::move(options));
  ControlPlaneOptions rank = rank_options(1, 2, store.port());
  rank.timeout = std::chrono::milliseconds(300);
  bool says_so = false;
  for (int attempt = 0; attempt < 5 && !says_so; ++attempt) {  // where the machine stood still a try met the deadline
    const std::string error = error_of_joining(rank);
    CAPTURE(error);
    CHECK(error != "");
    says_so = contains(error, "timed out") ||  // it joined after all
              contains(error, "closed the connection without an answer");
  }
  CHECK(says_so);
}
