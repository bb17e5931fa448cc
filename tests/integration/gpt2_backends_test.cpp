// ctest: TIMEOUT 120 PROCESSORS 2
// Trainings of minutes under a sanitizer, which does not build them.
// ctest: LABELS long no-asan no-tsan
// The example gpt2 over Gloo and MPI: the training of the one in shared memory.

#include "integration/prelude.hpp"
#include "support/gpt2_program.hpp"

namespace {

using gpt2_program::difference;
using gpt2_program::losses_of;

const std::string mpirun = DTRAIN_TEST_MPIRUN;  // empty without MPI

/// `arguments` go before the training's flags. The exit code is not asked for: see is_false_report in mpi_test.cpp. A
/// training that fails writes no summary.
SummaryFile train_by(const std::string& program, std::vector<std::string> arguments) {
  const support::TemporaryDirectory folder;
  for (const std::string& flag : gpt2_program::small_model)
    arguments.push_back(flag);
  arguments.push_back("--summary=" + folder.path + "/summary");
  Program started(program, std::move(arguments),
                  {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
  const support::Result result = started.finish(support::soon(std::chrono::seconds(60)));
  INFO(result.error);
  REQUIRE(std::filesystem::exists(folder.path + "/summary"));
  return SummaryFile(folder.path + "/summary");
}

void check_same_training(const SummaryFile& summary) {
  const SummaryFile here = gpt2_program::train({"--nproc-per-node=2"});
  CHECK(difference(losses_of(summary), losses_of(here)) < 1e-3);
  CHECK(summary.number("world_size") == 2);
  CHECK(summary.text("bytes_sent_per_step") == here.text("bytes_sent_per_step"));
}

}  // namespace

TEST_CASE("over Gloo it is the same training") {
  if (!gpt2_program::can_run()) return;
  const std::string program = gpt2_program::example + "_gloo";
  if (!std::filesystem::exists(program)) return dtrain_test::skip("built without Gloo (libgloo-dev provides it)");
  check_same_training(train_by(program, {"--nproc-per-node=2"}));
}

TEST_CASE("over MPI it is the same training") {
  if (!gpt2_program::can_run()) return;
  if (mpirun.empty()) return dtrain_test::skip("built without MPI (libopenmpi-dev and openmpi-bin provide one)");
  check_same_training(train_by(mpirun, {"--oversubscribe", "-n", "2", gpt2_program::example + "_mpi"}));
}
