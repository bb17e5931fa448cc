// ctest: TIMEOUT 120
// A body that forks between the steps of its training, or in one: the child is not the rank, which goes on.

#include "integration/prelude.hpp"

namespace {

/// @param where "in-step", "unwrapped" or "": between steps
Result fork_probe(const std::string& what, const std::string& where) {
  std::vector<std::string> arguments{"--nproc-per-node=2", what};
  if (!where.empty()) {
    arguments.push_back(where);
  }
  return support::run(DTRAIN_TEST_PROGRAMS_DIR "/fork_probe", arguments);
}

/// Whether both ranks took all their steps, each with the average of both ranks' gradients.
void check_training(const Result& result) {
  CHECK_MESSAGE(result.exit_code == 0, result.output, result.error);
  CHECK_CONTAINS(result.output, "[0] rank 0 took 10 steps\n", "[1] rank 1 took 10 steps\n");
}

}  // namespace

TEST_CASE("a child that the body forked neither leaves nor fails for the rank when it comes back from the body") {
  for (const char* const what : {"return", "throw"}) {
    for (const char* const where : {"", "in-step", "unwrapped"}) {
      CAPTURE(what);
      CAPTURE(where);
      const Result result = fork_probe(what, where);
      check_training(result);
      const std::string code = what == std::string("throw") ? "1" : "7";
      CHECK_CONTAINS(result.output, "[0] rank 0's child ended with " + code + "\n",
                     "[1] rank 1's child ended with " + code + "\n");
      CHECK_CONTAINS(result.error, "a process that the body forked returned from the body");
    }
  }
}

TEST_CASE("a child that writes the gradients that dtrain placed ends there, and the ranks' averages stay theirs") {
  for (const char* const where : {"", "in-step"}) {
    CAPTURE(where);
    const Result result = fork_probe("write", where);
    check_training(result);
    CHECK(!contains(result.output, "child ended with 0\n"));
  }
}

TEST_CASE("a child that calls the rank's process group is told that it is no rank") {
  const Result result = fork_probe("call", "");
  check_training(result);
  for (const std::string rank : {"0", "1"}) {
    CHECK_CONTAINS(result.output,
                   "the child of rank " + rank + ": a process that rank " + rank +
                       " forked called its process group; the group is of the process that joined the "
                       "job; let the child compute without it, and end with _exit or exec\n",
                   "rank " + rank + "'s child ended with 7\n");
  }
}
