// Ctrl-C: ranks with a handler of their own stop together, and the job ends well.

#include "integration/prelude.hpp"

TEST_CASE("small_network stops after an epoch at SIGINT, on all ranks, and goes on from its checkpoint") {
  const std::string program = DTRAIN_EXAMPLES_DIR "/small_network";
  const TemporaryDirectory folder;
  const std::string file = folder.path + "/network";
  support::Program job(program, {"--nproc-per-node=3", file});
  const dtrain::Deadline deadline = support::soon();
  while (!std::filesystem::exists(file) && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  job.signal(SIGINT);
  const Result stopped = job.finish();
  INFO(stopped.error);
  CHECK(stopped.exit_code == 0);  // also where the signal came too late
  const Result resumed = support::run(program, {"--nproc-per-node=2", file});
  CHECK(resumed.exit_code == 0);
  CHECK_CONTAINS(resumed.output, "mean squared error");
}
