#include "dtrain/rendezvous/formation/formation_messages.hpp"

#include "unit/rendezvous/prelude.hpp"

namespace {

Announce full_announce() {
  Announce announce;
  announce.worker = {"boot/net:1", 12, 99};
  announce.host = "a";
  announce.job = 5;
  announce.progress = {2, 17, 3, true};
  announce.settings = "kept state=3 tensors\n";
  announce.error = Cause{CauseKind::exception, 2, {}, "no such file"};
  return announce;
}

/// Whether every shorter form of a message, and one with a byte more, is refused.
template <class AnyMessage>
void check_bounds(Frame frame) {
  for (std::size_t size = 0; size < frame.size(); ++size) {
    CHECK_FALSE(decode<AnyMessage>(std::span(frame).first(size)));
  }
  frame.push_back({});
  CHECK_FALSE(decode<AnyMessage>(frame));
}

}  // namespace

TEST_CASE("the messages of a formation arrive as they were sent, whole or not at all") {
  const Frame announce = encode(full_announce());
  const std::optional<FromWorker> decoded = decode<FromWorker>(announce);
  REQUIRE(decoded);
  const Announce* const received = std::get_if<Announce>(&*decoded);
  REQUIRE(received != nullptr);
  CHECK(received->worker == WorkerId{"boot/net:1", 12, 99});
  CHECK(received->host == "a");
  CHECK(received->job == 5);
  CHECK(received->progress == TrainingProgress{2, 17, 3, true});
  CHECK(received->settings == "kept state=3 tensors\n");
  REQUIRE(received->error);
  CHECK(received->error->sentence() == "rank 2 failed: no such file");
  check_bounds<FromWorker>(announce);

  const Frame assignment = encode(Assignment{5, 4, 1, 3, {2, 17}, 2});
  const std::optional<ToWorker> sent = decode<ToWorker>(assignment);
  REQUIRE(sent);
  const Assignment& rank = std::get<Assignment>(*sent);
  CHECK(rank.job == 5);
  CHECK(rank.attempt == 4);
  CHECK(rank.rank == 1);
  CHECK(rank.world_size == 3);
  CHECK(rank.source == TrainingProgress{2, 17});
  CHECK(rank.receivers == 2);
  check_bounds<ToWorker>(assignment);

  const Frame finished = encode(Finished{4, true});
  CHECK(std::get<Finished>(*decode<ToWorker>(finished)).is_member);
  CHECK(std::get<Finished>(*decode<FromWorker>(finished)).attempt == 4);
  check_bounds<FromWorker>(finished);
  const Frame barred = encode(Barred{4000, "a worker broke attempt 5"});
  const std::optional<ToWorker> told = decode<ToWorker>(barred);
  REQUIRE(told);
  CHECK(std::get<Barred>(*told).milliseconds == 4000);
  CHECK(std::get<Barred>(*told).reason == "a worker broke attempt 5");
  check_bounds<ToWorker>(barred);
  const Frame commit = encode(Committed{7, {9, 0.25, {1.5, -2}}});
  const auto committed = std::get<Committed>(*decode<FromWorker>(commit));
  CHECK(committed.attempt == 7);
  CHECK(committed.weights.digest == 9);
  CHECK(committed.weights.rounding == 0.25);
  CHECK(committed.weights.sums == std::array<double, 8>{1.5, -2});
  check_bounds<FromWorker>(commit);
  CHECK(std::get<Finished>(*decode<FromWorker>(encode(Finished{4, false, 77}))).digest == 77);
  CHECK(std::get<CallRequest>(*decode<ToWorker>(encode(CallRequest{3}))).attempt == 3);
  CHECK(std::get<Called>(*decode<FromWorker>(encode(Called{3}))).attempt == 3);
  CHECK(std::get<OwnError>(*decode<ToWorker>(encode(OwnError{"no such file"}))).sentence == "no such file");
  const Frame report = encode(FailureReport{{dtrain::CauseKind::exception, -1, {}, "no such file"}});
  CHECK(std::get<FailureReport>(*decode<FromWorker>(report)).cause.text == "no such file");
  check_bounds<FromWorker>(report);
}

TEST_CASE("a rank outside of its world, and texts beyond their bounds, are refused") {
  CHECK_FALSE(decode<ToWorker>(encode(Assignment{5, 4, 3, 3, {}, 0})));
  CHECK_FALSE(decode<ToWorker>(encode(Assignment{5, 4, -1, 3, {}, 0})));
  CHECK_FALSE(decode<ToWorker>(encode(Assignment{5, 4, 0, max_world_size + 1, {}, 0})));
  CHECK_FALSE(decode<ToWorker>(encode(Assignment{5, 4, 0, 3, {}, 4})));
  CHECK(decode<ToWorker>(encode(Assignment{5, 4, 0, 3, {2, 17, 17}, 2})));
  CHECK_FALSE(decode<ToWorker>(encode(Assignment{5, 4, 0, 3, {2, 17, 18}, 2})));
  Announce announce = full_announce();
  announce.settings = std::string(max_settings_bytes + 1, 'x');
  const std::optional<FromWorker> cut = decode<FromWorker>(encode(announce));  // a writer cuts what is too long
  REQUIRE(cut);
  CHECK(std::get<Announce>(*cut).settings.size() == max_settings_bytes);
  announce.host = "a\nb";
  CHECK(std::get<Announce>(*decode<FromWorker>(encode(announce))).host.find('\n') == std::string::npos);
}

TEST_CASE("a message of one direction is none of the other") {
  CHECK_FALSE(decode<ToWorker>(encode(full_announce())));
  CHECK_FALSE(decode<FromWorker>(encode(Assignment{5, 4, 1, 3, {2, 17}, 2})));
  CHECK_FALSE(decode<FromRank>(encode(full_announce())));
}
