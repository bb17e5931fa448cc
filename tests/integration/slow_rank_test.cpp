// ctest: LABELS long
// A rank that computes longer than the others is named in the log, after four windows of ten seconds.

#include <regex>

#include "integration/prelude.hpp"

TEST_CASE("the rank that computes longest is named, although the others wait for it outside of finish()") {
  Program job(DTRAIN_TEST_PROGRAMS_DIR "/stuck_training", {"--nproc-per-node=3", "slow"});
  REQUIRE(job.wait_for(" of each step for it", dtrain::Deadline::after(std::chrono::minutes(5))));
  job.signal(SIGTERM);
  const Result result = job.wait();
  CHECK_MESSAGE(
      std::regex_search(result.error,
                        std::regex("^dtrain: rank 1 \\(host [^)]*, process \\d+\\) computes [.\\d]* ms a step, "
                                   "[.\\d]* times the median of 3 ranks, since about step \\d+; [.\\d]* times "
                                   "outside of it; the others wait up to [.\\d]* ms of each step for it")),
      result.error);
}
