// Jobs over Gloo that start their own ranks: what they compute, and how they end when a rank fails.
// ctest: LABELS no-tsan
// ctest: TIMEOUT 180

#include "integration/prelude.hpp"
#include "support/killed_rank.hpp"

namespace {

const std::string gloo_probe = DTRAIN_TEST_PROGRAMS_DIR "/gloo_probe";

/// The probe on that many ranks; `what` is its argument.
Result job(int ranks, const std::string& what, const Program::Variables& variables = {}) {
  return support::run(gloo_probe, {"--nproc-per-node=" + std::to_string(ranks), what}, variables,
                      std::chrono::seconds(40));
}

/// Whether the probe knows Gloo; says so where it does not.
bool there_is_gloo() {
  static const bool is_there = !contains(support::run(gloo_probe, {"--help-launch"}).output, "built without Gloo");
  return dtrain_test::needs(is_there, "no Gloo was found when the programs were built (libgloo-dev)");
}

}  // namespace

TEST_CASE("ranks reduce over Gloo, in the whole job and in groups of it") {
  if (!there_is_gloo()) return;
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    const Result result = job(ranks, "hello");
    CAPTURE(result.error);
    CHECK(result.exit_code == 0);
    const std::string sum = std::to_string(ranks * (ranks - 1) / 2);
    CHECK_CONTAINS(result.output,
                   "rank 0 of " + std::to_string(ranks) + ": sum " + sum + ", half " + std::to_string((ranks + 1) / 2));
    CHECK(result.error.empty());
  }
}

TEST_CASE("channels of Gloo never wait for each other") {
  if (!there_is_gloo()) return;
  const Result result = job(3, "crossed");
  CAPTURE(result.error);
  CHECK(result.exit_code == 0);
  CHECK(!contains(result.output, "wrong"));
}

TEST_CASE("a killed rank ends the others within 2 s, and they name it") {
  if (!there_is_gloo()) return;
  const Result well = job(3, "hello");
  support::check_killed_rank_is_named(well, job(3, "kill", {{"DTRAIN_LOG", "debug"}}));
}

TEST_CASE("an exception on one rank is what all ranks say") {
  if (!there_is_gloo()) return;
  const Result result = job(3, "throw");
  support::check_ended(result, 1, {"failed: rank 1 has had enough"});
}

TEST_CASE("ranks that reduce different counts learn what each called, instead of waiting") {
  if (!there_is_gloo()) return;
  const Result result = job(3, "other_count");
  support::check_failed(result,
                        {"called all_reduce (average) of 999999 f32", "called all_reduce (average) of 1000000 f32"});
}

TEST_CASE("a rank that leaves while others reduce is named") {
  if (!there_is_gloo()) return;
  const Result result = job(2, "leave");
  support::check_failed(result, {"rank 1 on host", "has ended or left the channel"});
}

TEST_CASE("a stopped rank ends the others by the timeout, which names it") {
  if (!there_is_gloo()) return;
  const Result result = job(3, "stop", {{"DTRAIN_TIMEOUT_SECONDS", "6"}, {"DTRAIN_LIVENESS_SECONDS", "60"}});
  support::check_failed(result, {"rank 1 had not "});
}
