// Channels never wait for each other, with ranks as processes: each operation ends by DTRAIN_TIMEOUT_SECONDS, and a job
// that would wait for ever ends with a sentence instead of all ranks being right.
// ctest: TIMEOUT 120

#include "integration/prelude.hpp"

TEST_CASE("ranks that do things in different orders on different channels all end, right, for 2 and 3 ranks") {
  const std::string program = DTRAIN_TEST_PROGRAMS_DIR "/crossed_channels";
  for (const int ranks : {2, 3}) {
    for (const char* crossing : {"ready", "finish", "both", "collective"}) {
      for (const char* progress : {"caller", "thread"}) {
        for (const char* elements : {"3", "100000"}) {
          CAPTURE(ranks);
          CAPTURE(crossing);
          CAPTURE(progress);
          CAPTURE(elements);
          const support::Result result =
              support::run(program, {"--nproc-per-node=" + std::to_string(ranks), crossing, progress, elements},
                           {{"DTRAIN_TIMEOUT_SECONDS", "10"}});
          CAPTURE(result.error);
          CHECK(result.exit_code == 0);
          for (int rank = 0; rank < ranks; ++rank) {
            const std::string line = "rank " + std::to_string(rank) + ": right\n";
            CHECK_CONTAINS(result.output, line);
          }
        }
      }
    }
  }
}
