// ctest: TIMEOUT 240 PROCESSORS 2
// Trainings of minutes under a sanitizer; unit.public_interface has checkpoints with small models there.
// ctest: LABELS long no-asan no-tsan
// The example gpt2 started again from its checkpoint: the same bits, whatever the state is made of.

#include "integration/prelude.hpp"
#include "support/gpt2_program.hpp"

namespace {

using gpt2_program::can_run;
using gpt2_program::difference;
using gpt2_program::losses_of;
using gpt2_program::run;

std::vector<std::string> flags(const std::string& checkpoint, std::vector<std::string> others = {}) {
  others.insert(others.begin(), {"--steps=60", "--checkpoint-steps=10", "--checkpoint=" + checkpoint});
  others.insert(others.begin(), gpt2_program::small_model.begin(), gpt2_program::small_model.end());
  return others;
}

/// Starts a training, and kills it once it has saved a checkpoint and before it has ended.
void begin_and_kill(const std::string& checkpoint, const std::vector<std::string>& others) {
  for (int tries = 0; tries < 5; ++tries) {
    std::filesystem::remove(checkpoint);
    Program program(gpt2_program::example, flags(checkpoint, others));
    program.close_input();
    const dtrain::Deadline deadline = support::soon(std::chrono::seconds(60));
    while (!std::filesystem::exists(checkpoint) && !deadline.passed())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    REQUIRE(std::filesystem::exists(checkpoint));
    program.signal(SIGKILL);
    const int exit_code = program.wait().exit_code;
    REQUIRE(support::all_gone(checkpoint, support::soon()));
    if (exit_code == 128 + SIGKILL) return;
  }
  FAIL("each training ended before it could be killed");
}

struct Ended {
  SummaryFile summary;
  std::string output;
};

Ended train_to_the_end(const std::string& checkpoint, std::vector<std::string> others) {
  const TemporaryDirectory folder;
  others.push_back("--summary=" + folder.path + "/summary");
  const Result result = run(flags(checkpoint, std::move(others)));
  REQUIRE_MESSAGE(result.exit_code == 0, result.error);
  return {SummaryFile(folder.path + "/summary"), result.output};
}

}  // namespace

TEST_CASE("killed and started again, a training ends with the bits and losses of one that was not") {
  if (!can_run()) return;
  for (const std::vector<std::string>& others :
       std::vector<std::vector<std::string>>{{},
                                             {"--zero=1"},
                                             {"--zero=2"},
                                             {"--dtype=bf16"},
                                             {"--dtype=bf16", "--zero=1"},
                                             {"--hook=powersgd:4"},
                                             {"--hook=bf16:error-feedback"},
                                             {"--steps=130", "--checkpoint-steps=110", "--hook=topk:5"},
                                             {"--steps=130", "--checkpoint-steps=110", "--hook=local:3"},
                                             {"--clip=0", "--checkpoint-steps=40", "--plan=measured"}}) {
    const std::string which = others.empty() ? "whole" : others.back();
    CAPTURE(which);
    const TemporaryDirectory folder;
    std::vector<std::string> on_two = others;
    on_two.push_back("--nproc-per-node=2");
    const SummaryFile whole = train_to_the_end(folder.path + "/whole", on_two).summary;
    begin_and_kill(folder.path + "/killed", on_two);
    const Ended resumed = train_to_the_end(folder.path + "/killed", on_two);
    CHECK_CONTAINS(resumed.output, "going on from " + folder.path + "/killed, after step ");
    CHECK(resumed.summary.text("parameters_digest") == whole.text("parameters_digest"));
    CHECK(resumed.summary.text("losses") == whole.text("losses"));
    if (!others.empty()) continue;
    // All steps are in the file now: nothing is left to do, and nothing changes.
    const Ended again = train_to_the_end(folder.path + "/killed", on_two);
    CHECK(again.summary.text("parameters_digest") == whole.text("parameters_digest"));
    CHECK(again.summary.number("step_ms") == 0);
  }
}

TEST_CASE("a checkpoint changes nothing in a training, and goes on on any number of ranks") {
  if (!can_run()) return;
  for (const char* stage : {"--zero=0", "--zero=2"}) {
    CAPTURE(stage);
    const TemporaryDirectory folder;
    const SummaryFile whole = train_to_the_end(folder.path + "/whole", {"--nproc-per-node=2", stage}).summary;
    CHECK(gpt2_program::train({"--nproc-per-node=2", stage, "--steps=60"}).text("parameters_digest") ==
          whole.text("parameters_digest"));
    for (const char* ranks : {"1", "4"}) {
      CAPTURE(ranks);
      const std::string checkpoint = folder.path + "/on_" + ranks;
      begin_and_kill(checkpoint, {"--nproc-per-node=2", stage});
      const Ended resumed = train_to_the_end(checkpoint, {std::string("--nproc-per-node=") + ranks, stage});
      CHECK_CONTAINS(resumed.output, "going on from ");
      CHECK(difference(losses_of(resumed.summary), losses_of(whole)) < 0.02);
    }
  }
}

TEST_CASE("the checkpoint of another training is refused in one sentence") {
  if (!can_run()) return;
  const TemporaryDirectory folder;
  const std::string checkpoint = folder.path + "/checkpoint";
  gpt2_program::train({"--nproc-per-node=2", "--checkpoint=" + checkpoint});
  const auto refusal = [&](const char* flag) {
    const Result result = run({"--nproc-per-node=2", "--checkpoint=" + checkpoint, flag});
    CHECK(result.exit_code == 2);
    return result.error;
  };
  for (const char* flag :
       {"--seed=2", "--steps=30", "--clip=0.5", "--rate=0.001", "--hook=bf16", "--data=/etc/passwd"}) {
    CAPTURE(flag);
    const std::string error = refusal(flag);
    CHECK_CONTAINS(error, "losses with --steps=20 --global-batch=16 --seed=1",
                   "; go on with the flags it began with, or name another file");
  }
}
