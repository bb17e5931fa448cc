// ctest: TIMEOUT 60
// A body that forks: what comes back from it in the child is not the rank.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "support/launch_probe.hpp"
#include "support/program.hpp"

using support::contains;
using support::Result;

TEST_CASE("a child that the body forked neither leaves nor fails for the rank when it comes back from the body") {
  const std::string program = DTRAIN_TEST_PROGRAMS_DIR "/fork_probe";
  for (const bool throws : {false, true}) {
    for (const bool wraps : {false, true}) {
      CAPTURE(throws);
      CAPTURE(wraps);
      std::vector<std::string> arguments{"--nproc-per-node=2"};
      if (throws) {
        arguments.emplace_back("throw");
      }
      if (wraps) {
        arguments.emplace_back("ddp");
      }
      const Result result = support::run(program, arguments);
      CHECK(result.exit_code == 0);
      const std::string code = throws ? "1" : "7";
      CHECK(contains(result.output, "[0] rank 0 is well, its child ended with " + code + "\n"));
      CHECK(contains(result.output, "[1] rank 1 is well, its child ended with " + code + "\n"));
      CHECK(contains(result.error, "a process that the body forked came back from it"));
    }
  }
}
