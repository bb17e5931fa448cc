#include "unit/rendezvous/prelude.hpp"

namespace {

template <std::size_t N>
std::array<std::byte, N> filled(int value) {
  std::array<std::byte, N> bytes{};
  bytes.fill(static_cast<std::byte>(value));
  return bytes;
}

Hello a_hello() {
  return {"0.1.0", ClientRole::launcher, 3, filled<16>(7), true};
}

Join a_join() {
  Join join;
  join.info.rank = 3;
  join.info.host_id = "boot/net:1";
  join.info.host = "host-a";
  join.info.local_rank = 1;
  join.info.node_count = 2;
  join.info.settings = "backend=SharedMemory\n";
  join.world_size = 4;
  join.job = "job-7";
  join.origin.is_exact_job = true;
  join.origin.process_space = 4026531836;
  join.origin.starter = 70;
  join.origin.starter_began = 123456;
  join.origin.starter_name = "bash";
  join.origin.program = "train";
  join.origin.build = "build id 5f";
  join.opens_store = true;
  join.process = 1234;
  join.join_timeout_ms = 600000;
  join.proof = filled<32>(9);
  return join;
}

Request a_request(RequestKind operation, std::vector<std::string> keys) {
  Request request;
  request.id = 42;
  request.kind = operation;
  request.keys = std::move(keys);
  request.value = "value";
  request.number = -7;
  return request;
}

dtrain::Cause a_cause() {
  return {dtrain::CauseKind::exception, 2, "host-b", "it broke"};
}

std::vector<Frame> frames_from_rank() {
  std::vector<Frame> frames;
  for (const RequestKind each : {RequestKind::set, RequestKind::get, RequestKind::try_get, RequestKind::add,
                                 RequestKind::wait, RequestKind::barrier}) {
    frames.push_back(encode(a_request(each, {"key"})));
  }
  frames.push_back(encode(a_request(RequestKind::wait, {"a", "", "b"})));
  frames.push_back(encode(Cancel{9}));
  frames.push_back(encode(FailureReport{a_cause()}));
  frames.push_back(encode(Leave{}));
  return frames;
}

std::vector<Frame> frames_to_rank() {
  Membership membership;
  membership.rank = 1;
  membership.world_size = 2;
  membership.host = "host-a";
  membership.job = "0123";
  return {encode(Welcome{membership}), encode(Failure{a_cause()}), encode(Response{1, Status::ok, "text", -1}),
          encode(Left{})};
}

}  // namespace

TEST_CASE("a hello comes back as it was") {
  const auto decoded = decode_hello(encode(a_hello()), "0.1.0");
  REQUIRE(decoded);
  const Hello& hello = std::get<Hello>(*decoded);
  CHECK(hello.version == "0.1.0");
  CHECK(hello.nonce == a_hello().nonce);
  CHECK(hello.role == ClientRole::launcher);
  CHECK(hello.attempt == 3);
  CHECK(hello.has_secret);
}

TEST_CASE("what is sent in the handshake comes back as it was") {
  const auto decoded = decode<std::variant<Join>>(encode(a_join()));
  REQUIRE(decoded);
  const Join& join = std::get<Join>(*decoded);
  CHECK(join.info.rank == 3);
  CHECK(join.info.host_id == "boot/net:1");
  CHECK(join.info.host == "host-a");
  CHECK(join.info.local_rank == 1);
  CHECK_FALSE(join.info.local_world_size);
  CHECK_FALSE(join.info.node_rank);
  CHECK(join.info.node_count == 2);
  CHECK(join.info.settings == "backend=SharedMemory\n");
  CHECK(join.world_size == 4);
  CHECK(join.job == "job-7");
  CHECK(join.origin == a_join().origin);
  CHECK(join.opens_store);
  CHECK(join.process == 1234);
  CHECK(join.join_timeout_ms == 600000);
  CHECK(join.proof == filled<32>(9));
  const auto challenge = decode<HandshakeReply>(encode(Challenge{filled<16>(4), true}));
  REQUIRE(challenge);
  CHECK(std::get<Challenge>(*challenge).nonce == filled<16>(4));
  CHECK(std::get<Challenge>(*challenge).asks_secret);
  const auto accepted = decode<HandshakeReply>(encode(Accepted{500, 5000, filled<32>(2)}));
  REQUIRE(accepted);
  CHECK(std::get<Accepted>(*accepted).heartbeat_ms == 500);
  CHECK(std::get<Accepted>(*accepted).liveness_ms == 5000);
  CHECK(std::get<Accepted>(*accepted).proof == filled<32>(2));
  CHECK(std::get<Refused>(*decode<HandshakeReply>(encode(Refused{"no"}))).sentence == "no");
  CHECK(is_heartbeat(heartbeat_frame));
  CHECK_FALSE(is_heartbeat(encode(Leave{})));
  CHECK_FALSE(is_heartbeat(std::vector<std::byte>(2, heartbeat_frame.front())));
  CHECK_FALSE(is_heartbeat({}));
}

TEST_CASE("a rank's status comes back as it was, and what exceeds its bounds is no message") {
  RankStatus sent;
  sent.phase = RankPhase::finish;
  sent.step = 812;
  sent.ready = 41;
  sent.parameters = 148;
  sent.missing = "parameter 7 'h.7.mlp'";
  sent.thread = "runs";
  sent.unchanged_ms = 12000;
  sent.channels = {{"ddp-1", "all_reduce (sum) of 8 f32", 5684, 5685, 900, true}, {"group", "barrier", 2, 2, 0, false}};
  sent.process = 4711;
  sent.values = {64, 9876543210, 4};
  sent.finding = {2, 811, true, "the sum"};
  sent.computing = {21, 70, 50, 900, 1000, 1100, 800, 200, 4, 310};
  const auto decoded = decode<FromRank>(encode(sent));
  REQUIRE(decoded);
  const RankStatus& status = std::get<RankStatus>(*decoded);
  CHECK(status.phase == RankPhase::finish);
  CHECK(status.step == 812);
  CHECK(status.ready == 41);
  CHECK(status.parameters == 148);
  CHECK(status.missing == sent.missing);
  CHECK(status.thread == "runs");
  CHECK(status.unchanged_ms == 12000);
  REQUIRE(status.channels.size() == 2);
  CHECK(status.channels[0].name == "ddp-1");
  CHECK(status.channels[0].call == "all_reduce (sum) of 8 f32");
  CHECK(status.channels[0].sequence == 5684);
  CHECK(status.channels[0].called == 5685);
  CHECK(status.channels[0].unchanged_ms == 900);
  CHECK(status.channels[0].is_in_operation);
  CHECK_FALSE(status.channels[1].is_in_operation);
  CHECK(status.process == 4711);
  CHECK(status.values.steps == 64);
  CHECK(status.values.digest == 9876543210);
  CHECK(status.values.ranks == 4);
  CHECK(status.finding.number == 2);
  CHECK(status.finding.step == 811);
  CHECK(status.finding.is_sum);
  CHECK(status.finding.text == "the sum");
  CHECK(status.computing == sent.computing);
  sent.channels.resize(RankStatus::most_channels + 1);
  CHECK_FALSE(decode<FromRank>(encode(sent)));
  std::vector<std::byte> frame = encode(RankStatus{});
  frame[1] = std::byte{9};  // the phase
  CHECK_FALSE(decode<FromRank>(frame));
}

TEST_CASE("a hello of another protocol or version is refused with both in the sentence") {
  const auto newer = decode_hello(encode(a_hello(), 8), "0.1.0");
  REQUIRE(newer);
  CHECK(std::get<Refused>(*newer).sentence ==
        "this process runs dtrain 0.1.0 (protocol 8), the job dtrain 0.1.0 (protocol 7); run one build on all ranks");
  const auto older = decode_hello(encode(a_hello()), "0.2.0");
  REQUIRE(older);
  CHECK(std::get<Refused>(*older).sentence.find("runs dtrain 0.1.0 (protocol 7), the job dtrain 0.2.0") !=
        std::string::npos);
  Frame other_magic = encode(a_hello());
  other_magic[1] = std::byte{0};
  CHECK_FALSE(decode_hello(other_magic, "0.1.0"));
}

TEST_CASE("requests come back as they were") {
  const auto decoded = decode<FromRank>(encode(a_request(RequestKind::wait, {"a", "", std::string(1024, 'k')})));
  REQUIRE(decoded);
  const Request& request = std::get<Request>(*decoded);
  CHECK(request.id == 42);
  CHECK(request.kind == RequestKind::wait);
  CHECK(request.keys == std::vector<std::string>{"a", "", std::string(1024, 'k')});
  const auto set = decode<FromRank>(encode(a_request(RequestKind::set, {"a"})));
  REQUIRE(set);
  CHECK(std::get<Request>(*set).value == "value");
  const auto add = decode<FromRank>(encode(a_request(RequestKind::add, {"a"})));
  REQUIRE(add);
  CHECK(std::get<Request>(*add).number == -7);
}

TEST_CASE("a message is read only by the side that it is for") {
  for (const Frame& frame : frames_from_rank()) {
    CHECK(decode<FromRank>(frame));
    CHECK_FALSE(decode<ToRank>(frame));
    CHECK_FALSE(decode_hello(frame, "0.1.0"));
  }
  for (const Frame& frame : frames_to_rank()) {
    CHECK(decode<ToRank>(frame));
    CHECK_FALSE(decode<FromRank>(frame));
    CHECK_FALSE(decode_hello(frame, "0.1.0"));
  }
}

TEST_CASE("every truncation and every byte too many is malformed") {
  std::vector<Frame> frames = frames_from_rank();
  for (const Frame& frame : frames_to_rank()) {
    frames.push_back(frame);
  }
  for (const Frame& frame : frames) {
    for (std::size_t length = 0; length < frame.size(); ++length) {
      const auto part = std::span(frame).first(length);
      CHECK_FALSE(decode<FromRank>(part));
      CHECK_FALSE(decode<ToRank>(part));
    }
    Frame longer = frame;
    longer.push_back(std::byte{0});
    CHECK_FALSE(decode<FromRank>(longer));
    CHECK_FALSE(decode<ToRank>(longer));
  }
  const Frame join = encode(a_join());
  for (std::size_t length = 0; length < join.size(); ++length) {
    CHECK_FALSE(decode<std::variant<Join>>(std::span(join).first(length)));
  }
  const Frame hello = encode(a_hello());
  for (std::size_t length = 0; length < hello.size(); ++length) {
    CHECK_FALSE(decode_hello(std::span(hello).first(length), "0.1.0"));
  }
}

TEST_CASE("random bytes and random changes never decode to something out of bounds") {
  std::mt19937 random(20240611);
  std::vector<Frame> seeds = frames_from_rank();
  for (const Frame& frame : frames_to_rank()) {
    seeds.push_back(frame);
  }
  seeds.push_back(encode(a_hello()));
  seeds.push_back(encode(a_join()));
  seeds.push_back(encode(Challenge{}));
  seeds.push_back(encode(Accepted{}));
  std::size_t decoded = 0;
  for (int round = 0; round < 20000; ++round) {
    Frame frame = seeds[random() % seeds.size()];
    if (round % 4 == 0) {
      frame.assign(random() % 64, std::byte{});
      for (std::byte& byte : frame) {
        byte = static_cast<std::byte>(random() & 0xffU);
      }
    }
    for (int change = 0; change < 2 && !frame.empty(); ++change) {
      frame[random() % frame.size()] = static_cast<std::byte>(random() & 0xffU);
    }
    if (const auto message = decode<FromRank>(frame)) {
      ++decoded;
      if (const auto* request = std::get_if<Request>(&*message)) {
        REQUIRE_FALSE(request->keys.empty());
        REQUIRE(request->keys.size() <= max_keys_per_wait);
        REQUIRE((takes_many(request->kind) || request->keys.size() == 1));
      }
    }
    if (const auto message = decode<ToRank>(frame)) {
      ++decoded;
      if (const auto* welcome = std::get_if<Welcome>(&*message)) {
        REQUIRE(welcome->membership.world_size >= 1);
      }
    }
    decoded += decode_hello(frame, "0.1.0").has_value() ? 1 : 0;
    if (const auto message = decode<std::variant<Join>>(frame)) {
      const Join& join = std::get<Join>(*message);
      ++decoded;
      REQUIRE(join.info.host.size() <= max_name_bytes);
      REQUIRE(join.info.settings.size() <= max_settings_bytes);
    }
    decoded += decode<HandshakeReply>(frame).has_value() ? 1 : 0;
  }
  CHECK(decoded > 100);  // or nothing was tried
}

TEST_CASE("announced lengths and counts beyond the bounds are malformed") {
  Frame wait = encode(a_request(RequestKind::wait, {"key"}));
  const std::size_t count_at = 1 + 8 + 1;
  wait[count_at] = std::byte{0xff};
  wait[count_at + 3] = std::byte{0x7f};
  CHECK_FALSE(decode<FromRank>(wait));
  wait[count_at] = wait[count_at + 3] = std::byte{0};
  CHECK_FALSE(decode<FromRank>(wait));
  CHECK_FALSE(decode<FromRank>(encode(a_request(RequestKind::get, {"a", "b"}))));
  CHECK_FALSE(decode<FromRank>(encode(a_request(RequestKind::get, {}))));
}

TEST_CASE("a text that is too long is cut") {
  const auto decoded = decode<HandshakeReply>(encode(Refused{std::string(100000, 'x')}));
  REQUIRE(decoded);
  CHECK(std::get<Refused>(*decoded).sentence.size() == max_sentence_bytes);
}
