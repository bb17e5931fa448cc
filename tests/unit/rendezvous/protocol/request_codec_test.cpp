#include "unit/rendezvous/prelude.hpp"

namespace {

Request a_request(RequestKind operation, Strings keys) {
  Request request;
  request.id = 42;
  request.kind = operation;
  request.keys = std::move(keys);
  request.value = std::string("va\0lue", 6);
  request.number = -7;
  request.expected = "old";
  request.values = Strings(request.keys.size(), "each");
  return request;
}

Request through_the_wire(const Request& request) {
  const auto decoded = decode<FromRank>(encode(request));
  REQUIRE(decoded);
  return std::get<Request>(*decoded);
}

std::vector<Frame> frames() {
  Response many{7, Status::ok, "", 0};
  many.values = {"a", "", std::string(3, '\0')};
  Request nothing_expected = a_request(RequestKind::compare_set, {"key"});
  nothing_expected.expected = std::nullopt;
  Request of_a_part = a_request(RequestKind::barrier, {"b"});
  of_a_part.members = RankSet::of({1, 3, 5, 6, 100});
  return {encode(of_a_part),
          encode(a_request(RequestKind::take, {"key"})),
          encode(a_request(RequestKind::compare_set, {"key"})),
          encode(nothing_expected),
          encode(a_request(RequestKind::erase, {"key"})),
          encode(a_request(RequestKind::append, {"key"})),
          encode(a_request(RequestKind::set_many, {"a", "b"})),
          encode(a_request(RequestKind::get_many, {"a", "b", "a"})),
          encode(many)};
}

}  // namespace

TEST_CASE("every kind of request is one that the codec knows, and no other number is") {
  std::vector<int> known;
  for (int kind = 0; kind <= 255; ++kind) {
    if (const auto decoded = decode<FromRank>(encode(a_request(static_cast<RequestKind>(kind), {"key"})))) {
      CHECK(static_cast<int>(std::get<Request>(*decoded).kind) == kind);
      known.push_back(kind);
    }
  }
  std::vector<int> all(12);
  std::iota(all.begin(), all.end(), 1);
  CHECK(known == all);
}

TEST_CASE("each operation carries what it needs, and nothing else") {
  const Request compare = through_the_wire(a_request(RequestKind::compare_set, {"k"}));
  CHECK(compare.expected == "old");
  CHECK(compare.value == std::string("va\0lue", 6));
  CHECK(compare.values.empty());
  Request none = a_request(RequestKind::compare_set, {"k"});
  none.expected = std::nullopt;
  CHECK_FALSE(through_the_wire(none).expected);
  none.expected = "";
  CHECK(through_the_wire(none).expected == "");
  const Request many = through_the_wire(a_request(RequestKind::set_many, {"a", "b"}));
  CHECK(many.keys == Strings{"a", "b"});
  CHECK(many.values == Strings{"each", "each"});
  CHECK(many.value.empty());
  CHECK(through_the_wire(a_request(RequestKind::append, {"k"})).value == std::string("va\0lue", 6));
  const Request erase = through_the_wire(a_request(RequestKind::erase, {"k"}));
  CHECK(erase.value.empty());
  CHECK(erase.number == 0);
  CHECK(through_the_wire(a_request(RequestKind::get_many, Strings(1024, "k"))).keys.size() == 1024);
}

TEST_CASE("a barrier carries whose it is, and a take how often") {
  Request barrier = a_request(RequestKind::barrier, {"b"});
  CHECK(through_the_wire(barrier).members.ranges.empty());
  for (const RankSet& members : {RankSet::of({0}), RankSet::of({1, 3, 5, 6, 100}), RankSet::first_of(max_world_size)}) {
    barrier.members = members;
    CHECK(through_the_wire(barrier).members == members);
  }
  CHECK(through_the_wire(a_request(RequestKind::take, {"k"})).number == -7);
  CHECK(through_the_wire(a_request(RequestKind::get, {"k"})).members.ranges.empty());
}

TEST_CASE("ranks beyond any job, twice or out of order, and too many ranges of them are malformed") {
  using Ranges = std::vector<RankSet::RankRange>;
  const int most = max_world_size - 1;
  for (const Ranges& ranges :
       {Ranges{{-1, 1, 0}}, Ranges{{most + 1, 1, 0}}, Ranges{{0, 1, most + 1}}, Ranges{{0, 0, 1}}, Ranges{{0, -1, 1}},
        Ranges{{1, 2, most / 2 + 1}}, Ranges{{0, 2, 3}, {6, 1, 0}}, Ranges{{5, 1, 0}, {4, 1, 0}},
        Ranges{{most, 1, 0}, {most + 1, 1, 0}}, Ranges{{0, 1, -1}}}) {
    Request barrier = a_request(RequestKind::barrier, {"b"});
    barrier.members.ranges = ranges;
    CHECK_FALSE(decode<FromRank>(encode(barrier)));
  }
  Request barrier = a_request(RequestKind::barrier, {"b"});
  for (int i = 0; i < static_cast<int>(max_barrier_ranges); ++i) {
    barrier.members.ranges.push_back({3 * i, 1, 0});
  }
  CHECK(encode(barrier).size() < max_frame_bytes);
  CHECK(through_the_wire(barrier).members == barrier.members);
  barrier.members.ranges.push_back({most, 1, 0});
  CHECK_FALSE(decode<FromRank>(encode(barrier)));
  StoreRequest unsent{{}, nullptr, barrier, std::nullopt, std::chrono::seconds(1)};
  CHECK_THROWS_WITH_AS(
      static_cast<void>(unsent.send()),
      "waiting in barrier 'b': its 16385 ranks are 16385 ranges of equal steps; at most 16384 are possible",
      dtrain::Error);
}

TEST_CASE("an answer carries values of any bytes in their order") {
  Response response{3, Status::ok, "text", -1};
  response.values = {"b", "", "a\n"};
  const auto decoded = decode<ToRank>(encode(response));
  REQUIRE(decoded);
  const Response& back = std::get<Response>(*decoded);
  CHECK(back.values == response.values);
  CHECK(back.text == "text");
  CHECK(back.number == -1);
}

TEST_CASE("requests of one key with several, and of too many, are malformed") {
  for (const RequestKind each : {RequestKind::compare_set, RequestKind::erase, RequestKind::append, RequestKind::get}) {
    CHECK_FALSE(decode<FromRank>(encode(a_request(each, {"a", "b"}))));
    CHECK_FALSE(decode<FromRank>(encode(a_request(each, {}))));
  }
  CHECK_FALSE(decode<FromRank>(encode(a_request(RequestKind::set_many, {}))));
  CHECK_FALSE(decode<FromRank>(encode(a_request(RequestKind::get_many, Strings(1025, "k")))));
  Response response;
  response.values = Strings(1025);
  CHECK_FALSE(decode<ToRank>(encode(response)));
}

TEST_CASE("every truncation and every byte too many of a request is malformed") {
  for (const Frame& frame : frames()) {
    for (std::size_t length = 0; length < frame.size(); ++length) {
      CHECK_FALSE(decode<FromRank>(std::span(frame).first(length)));
      CHECK_FALSE(decode<ToRank>(std::span(frame).first(length)));
    }
    Frame longer = frame;
    longer.push_back(std::byte{0});
    CHECK_FALSE(decode<FromRank>(longer));
    CHECK_FALSE(decode<ToRank>(longer));
  }
}

TEST_CASE("what random changes leave readable is within the bounds, and has one form only") {
  std::mt19937 random(20240611);
  const std::vector<Frame> seeds = frames();
  int decoded = 0;
  for (int round = 0; round < 20000; ++round) {
    Frame frame = seeds[random() % seeds.size()];
    frame[random() % frame.size()] = static_cast<std::byte>(random() & 0xffU);
    if (const auto message = decode<FromRank>(frame)) {
      ++decoded;
      const Request& request = std::get<Request>(*message);
      REQUIRE_FALSE(request.keys.empty());
      REQUIRE((takes_many(request.kind) || request.keys.size() == 1));
      REQUIRE((request.kind != RequestKind::set_many || request.values.size() == request.keys.size()));
      REQUIRE(encode(request) == frame);
    }
  }
  CHECK(decoded > 1000);
}

TEST_CASE("names and sentences from a peer arrive printable, keys and values as they are") {
  const auto failure = decode<ToRank>(encode(Failure{{dtrain::CauseKind::exception, 1, "h\x1b[2J", "a\nb\x07"}}));
  REQUIRE(failure);
  CHECK(std::get<Failure>(*failure).cause.sentence() == "rank 1 on host h\\x1b[2J failed: a\\nb\\x07");
  const auto report = decode<FromRank>(
      encode(FailureReport{{dtrain::CauseKind::exception, 1, "h", std::string(max_sentence_bytes, '\x1b')}}));
  REQUIRE(report);
  CHECK(std::get<FailureReport>(*report).cause.text.size() == max_sentence_bytes);
  CHECK(std::get<FailureReport>(*report).cause.text.find('\x1b') == std::string::npos);
  CHECK(through_the_wire(a_request(RequestKind::set, {"k\x1b"})).keys.front() == "k\x1b");
}

TEST_CASE("an answer that shares its values is the same frame as one that has them") {
  for (const std::size_t size : {std::size_t{0}, std::size_t{5}, std::size_t{100000}}) {
    const std::string value(size, 'v');
    const auto shared = std::make_shared<const std::string>(value);
    const Response plain{7, Status::ok, value, -3, {value, "b", value}};
    const ValueResponse sharing{7, Status::ok, shared, -3, {shared, std::make_shared<const std::string>("b"), shared}};
    const OutgoingFrame frame = encode(sharing);
    CHECK(frame.parts.size() == (size > 5 ? 3 : 0));
    Frame joined = frame.own;
    for (auto part = frame.parts.rbegin(); part != frame.parts.rend(); ++part) {
      const auto bytes = std::as_bytes(std::span(*part->bytes));
      joined.insert(joined.begin() + static_cast<std::ptrdiff_t>(part->at), bytes.begin(), bytes.end());
    }
    const bool is_same = joined == encode(plain);
    CHECK(is_same);
    CHECK(frame.size() == joined.size());
  }
  CHECK(encode(ValueResponse{}).own == encode(Response{}));
}
