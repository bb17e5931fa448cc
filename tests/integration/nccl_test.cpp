// Jobs over NCCL that start their own ranks: what they compute, and how they end when a rank fails.
// ctest: LABELS no-tsan
// ctest: TIMEOUT 300

#include "integration/prelude.hpp"
#include "support/gate.hpp"
#include "support/held_exit.hpp"
#include "support/killed_rank.hpp"

namespace {

const std::string nccl_probe = DTRAIN_TEST_PROGRAMS_DIR "/nccl_probe";

/// The probe on that many ranks; `what` is its argument. The emulation has a device for each, a real machine may not.
Result job(int ranks, const std::string& what, Program::Variables variables = {}) {
  variables.insert({"DTRAIN_EMULATED_DEVICES", std::to_string(ranks)});
  return support::run(nccl_probe, {"--nproc-per-node=" + std::to_string(ranks), what}, variables,
                      std::chrono::seconds(60));
}

/// Whether contexts, NCCL's first communicator and the end of a process take seconds: on real devices, and where the
/// emulation is told to be as slow.
bool devices_are_slow() {
  static const bool are_slow =
      std::getenv("DTRAIN_EMULATED_DELAYS") != nullptr || contains(job(1, "hello").output, "libcudart.so");
  return are_slow;
}

/// A DTRAIN_TIMEOUT_SECONDS within which ranks connect.
std::string short_timeout() {
  return devices_are_slow() ? "15" : "4";
}

/// Whether the probe can run that many ranks; says why where it cannot.
bool can_run(int ranks) {
  static const bool is_there = !contains(support::run(nccl_probe, {"--help-launch"}).output, "built without NCCL");
  if (!dtrain_test::needs(is_there, "no CUDA or NCCL headers were found when the programs were built")) return false;
  const Result hello = job(ranks, "hello");
  for (const char* const few : {"both compute on device", "no CUDA device is visible", "at most one rank for each"}) {
    if (contains(hello.error, few)) {
      dtrain_test::skip("there is no device for each of " + std::to_string(ranks) + " ranks");
      return false;
    }
  }
  return true;
}

/// Variables of a rank of two that somebody else starts.
Program::Variables one_of_two(int rank, const std::string& kind) {
  return {{"DTRAIN_EMULATED_DEVICES", "2"},
          {"DTRAIN_TEST_PROBE_PER_PROCESS", kind},
          {"DTRAIN_RANK", std::to_string(rank)},
          {"DTRAIN_WORLD_SIZE", "2"},
          {"DTRAIN_LOCAL_RANK", std::to_string(rank)},
          {"DTRAIN_LOCAL_WORLD_SIZE", "2"},
          {"DTRAIN_NODE_RANK", "0"},
          {"DTRAIN_NODE_COUNT", "1"},
          {"DTRAIN_MASTER_ADDR", "127.0.0.1"},
          {"DTRAIN_MASTER_PORT", std::to_string(20'000 + ::getpid() % 10'000)}};
}

/// What both processes of such a job come to, with a short timeout.
std::array<Result, 2> hello_of_two(const Program::Variables& more) {
  const auto begin = [&](int number) {
    Program::Variables variables = one_of_two(number, "caller");
    variables.insert({"DTRAIN_TIMEOUT_SECONDS", short_timeout()});
    variables.insert(more.begin(), more.end());
    auto program = std::make_unique<Program>(nccl_probe, std::vector<std::string>{"hello"}, variables);
    program->close_input();
    return program;
  };
  const auto first = begin(0);
  const auto second = begin(1);
  const dtrain::Deadline deadline = support::soon(std::chrono::seconds(60));
  return {first->wait(deadline), second->wait(deadline)};
}

}  // namespace

TEST_CASE("ranks reduce over NCCL, in the whole job, in groups of it and on channels of their own") {
  for (const int ranks : {1, 2, 4}) {
    if (!can_run(ranks)) return;
    CAPTURE(ranks);
    const Result result = job(ranks, "hello");
    CAPTURE(result.error);
    CHECK(result.exit_code == 0);
    const std::string sum = std::to_string(ranks * (ranks - 1) / 2);
    const std::string average = ranks == 1 ? "0.0" : ranks == 2 ? "0.5" : "1.5";
    const std::string last = std::to_string(ranks - 1);
    CHECK_CONTAINS(result.output, "rank " + last + " of " + std::to_string(ranks) + " on device " + last + ": sum " +
                                      sum + ", half " + std::to_string(ranks / 2 == 0 ? 1 : ranks / 2) + ", average " +
                                      average);
    CHECK(result.error.empty());
  }
}

TEST_CASE("ranks that are processes capture a step in a CUDA graph, and every replay reduces") {
  for (const int ranks : {1, 2, 4}) {
    if (!can_run(ranks)) return;
    const Result result = job(ranks, "graph");
    CAPTURE(ranks);
    CAPTURE(result.output);
    CAPTURE(result.error);
    CHECK(result.exit_code == 0);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string self = "rank " + std::to_string(rank) + " of " + std::to_string(ranks);
      CHECK_CONTAINS(result.output, self + ": not bound, 1 steps before it: 0 wrong, planned 1 times again",
                     self + ": bound, 1 steps before it: 0 wrong, planned 1 times again",
                     self + ": bound, 0 steps before it: 0 wrong, planned 0 times again");
    }
  }
}

TEST_CASE("a captured step reduces without NCCL's order of launches, and where NCCL_COMM_BLOCKING decides") {
  if (!can_run(2)) return;
  using Setting = std::pair<std::string, std::string>;
  for (const Setting& setting :
       {Setting{"NCCL_LAUNCH_ORDER_IMPLICIT", "0"}, {"NCCL_COMM_BLOCKING", "0"}, {"NCCL_COMM_BLOCKING", "1"}}) {
    CAPTURE(setting.first);
    CAPTURE(setting.second);
    const Result result = job(2, "graph", {setting});
    support::check_printed(result, {"rank 1 of 2: bound, 0 steps before it: 0 wrong"});
  }
}

TEST_CASE("two processes that somebody else starts reduce over NCCL") {
  if (!can_run(2)) return;
  for (const std::string kind : {"caller", "threads"}) {
    CAPTURE(kind);
    Program first(nccl_probe, {"hello"}, one_of_two(0, kind));
    Program second(nccl_probe, {"hello"}, one_of_two(1, kind));
    for (Program* const program : {&first, &second}) {
      program->close_input();
      const Result result = program->wait(support::soon(std::chrono::seconds(60)));
      support::check_printed(result, {"sum 1, half 1, average 0.5"});
    }
  }
}

TEST_CASE("a rank that waits for one that does not come to the first operation names it") {
  if (!can_run(2)) return;
  const auto begin = [](int number) {
    Program::Variables variables = one_of_two(number, "caller");
    variables.insert({{"DTRAIN_TIMEOUT_SECONDS", short_timeout()}, {"DTRAIN_LIVENESS_SECONDS", "60"}});
    return Program(nccl_probe, {"absent"}, variables);
  };
  Program waits = begin(0);
  Program stops = begin(1);
  stops.close_input();
  const Result result = waits.finish(support::soon(std::chrono::seconds(60)));
  support::check_ended(result, 1, {"rank 1 of the channel is in none"});
  CHECK_FALSE(contains(result.error, "this process ends here"));
}

TEST_CASE("a rank that waits for NCCL to connect it says so at its deadline") {
  if (!can_run(2)) return;
  for (const Result& result : hello_of_two({{"DTRAIN_EMULATED_INIT", "hangs"}})) {
    CAPTURE(result.error);
    if (contains(result.output, "sum 1")) return dtrain_test::skip("NCCL is real, and connects the ranks");
    CHECK(result.exit_code != 0);
    CHECK_CONTAINS(result.error, "ncclCommInitRankConfig for channel 'group' had not connected rank");
    CHECK_FALSE(contains(result.error, "this process ends here"));
  }
}

TEST_CASE("a launch that NCCL does not return from ends the process, and says why") {
  if (!can_run(2)) return;
  for (const Result& result : hello_of_two({{"DTRAIN_EMULATED_LAUNCHES", "held"}})) {
    CAPTURE(result.error);
    if (contains(result.output, "sum 1")) return dtrain_test::skip("NCCL is real, and launches");
    support::check_ended(
        result, 75,
        {"all_reduce (sum) of 1 f32, operation 1 of channel 'group'", "does not return: this process ends here"});
  }
}

TEST_CASE("two threads of a rank that launch at once are told what to do, unless all goes well") {
  if (!can_run(2)) return;
  const Result result = job(2, "race", {{"DTRAIN_TIMEOUT_SECONDS", short_timeout()}});
  CAPTURE(result.output);
  CAPTURE(result.error);
  const std::string all = result.output + result.error;
  const bool is_told = contains(all, "NCCL_LAUNCH_RACE_FATAL=0") ||                        // NCCL notices
                       contains(all, "the operations of all channels in the same order");  // the timeout does
  CHECK((is_told || contains(all, "no race was noticed")));
}

TEST_CASE("a rank that hangs within a step is named, though the others' hosts are many steps ahead") {
  if (!can_run(3)) return;
  const Result result = job(3, "hang", {{"DTRAIN_TIMEOUT_SECONDS", short_timeout()}});
  CAPTURE(result.error);
  CHECK(result.exit_code != 0);
  CHECK_CONTAINS(result.error, "rank 1 of the channel is in none");
  CHECK_FALSE(contains(result.error, "CUDA has not answered"));
  CHECK_FALSE(contains(result.error, "this process ends here"));
}

TEST_CASE("a rank that leaves long before the others of its node ends well, and says that NCCL was left behind") {
  if (!can_run(2)) return;
  const Result result = job(2, "early");
  CAPTURE(result.error);
  support::check_printed(result, {"rank 1: sum 2"});
  CHECK_CONTAINS(result.error, "NCCL did not end the communicator of channel",
                 "destroy wrappers and groups in one order on all ranks");
}

TEST_CASE("two ranks on one device are refused before NCCL begins, and both are named") {
  if (!can_run(1)) return;
  const Result result = job(2, "hello", {{"CUDA_VISIBLE_DEVICES", "0"}});
  support::check_ended(result, 1, {"ranks 0 and 1 on host ", " both compute on device "});
}

TEST_CASE("a killed rank ends the others over NCCL within 2 s, and they name it") {
  if (!can_run(3)) return;
  const Result well = job(3, "hello");
  support::check_killed_rank_is_named(well, job(3, "kill", {{"DTRAIN_LOG", "debug"}}), devices_are_slow());
}

TEST_CASE(
    "a rank killed in the middle of a step with a sharded optimizer ends the others within 2 s, and they name it") {
  if (!can_run(3)) return;
  const Result well = job(3, "hello");
  for (const char* const stage : {"states", "gradients"}) {
    CAPTURE(stage);
    support::check_killed_rank_is_named(well, job(3, stage, {{"DTRAIN_LOG", "debug"}}), devices_are_slow());
  }
}

TEST_CASE("the next attempt begins when a killed rank has ended, and with it what it has on its device") {
  if (!can_run(2)) return;
  Program program(nccl_probe, {"--nproc-per-node=2", "--max-restarts=1", "stop_once"},
                  {{"DTRAIN_EMULATED_DEVICES", "2"}});
  const auto stopped_rank = [&] {
    for (const pid_t rank : support::children_of(program.process())) {
      if (support::state_of(rank) == 'T') return rank;
    }
    return pid_t{0};
  };
  REQUIRE(support::holds_soon([&] { return stopped_rank() != 0; }));
  support::HeldExit held(stopped_rank());
  if (!held.traces()) return dtrain_test::skip("this process may not trace others");
  program.close_input();
  CHECK(held.is_ending_soon());
  CHECK(program.wait_for("1 killed worker has not ended yet, and device memory stays in use until then"));
  CHECK(held.release());
  const Result result = program.wait(support::soon(std::chrono::seconds(60)));
  CAPTURE(result.error);
  CHECK(result.exit_code == 0);
  CHECK(result.error.find("has not ended yet") < result.error.find("attempt 2 of 2 begins"));
  CHECK_CONTAINS(result.output, "sum 1, half 1, average 0.5");
}

TEST_CASE("an exception on one rank is what all ranks over NCCL say") {
  if (!can_run(3)) return;
  const Result result = job(3, "throw");
  support::check_ended(result, 1, {"failed: rank 1 has had enough"});
}

TEST_CASE("ranks that reduce over NCCL learn by the timeout which rank calls nothing, and what they wait in") {
  if (!can_run(3)) return;
  const Result result = job(3, "late", {{"DTRAIN_TIMEOUT_SECONDS", short_timeout()}});
  support::check_failed(result, {"rank 1 of the channel is in none", "all_reduce (average) of 100000 f32"});
}

TEST_CASE("a rank that leaves, or stops, while others reduce over NCCL is named") {
  if (!can_run(2)) return;
  const Program::Variables variables{{"DTRAIN_TIMEOUT_SECONDS", short_timeout()}, {"DTRAIN_LIVENESS_SECONDS", "60"}};
  const Result left = job(2, "leave", variables);
  CAPTURE(left.error);
  support::check_failed(left, {"rank 1 has left the channel"});
  const Result stopped = job(2, "stop", variables);
  support::check_failed(stopped, {"rank 1 of the channel is in none"});
}
