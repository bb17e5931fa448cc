#include "unit/launch/prelude.hpp"

namespace {

const WorkerEnd fine{0, {}, true, false};
const WorkerEnd secondary{1, {75, 0}, false, false};
const WorkerEnd killed{2, {0, SIGKILL}, false, false};
const WorkerEnd left_nothing{3, {}, false, false};
const WorkerEnd terminated{4, {0, SIGTERM}, false, true};

bool contains(const std::vector<std::string>& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

}  // namespace

TEST_CASE("exit codes are a shell's, and 0 before leaving is not 0") {
  CHECK(fine.exit_code() == 0);
  CHECK(!fine.failed());
  CHECK(killed.exit_code() == 137);
  CHECK(secondary.exit_code() == 75);
  CHECK(left_nothing.failed());
  CHECK(left_nothing.exit_code() == 1);
  CHECK(killed.text() == "killed by signal 9 (SIGKILL)");
  CHECK(WorkerEnd{2, {0, SIGKILL}, false, false, " (why)"}.text() == "killed by signal 9 (SIGKILL) (why)");
  CHECK(ExitStatus{3, 0}.text() == "exit code 3");
  CHECK(ExitStatus{0, 60}.text() == "killed by signal 60 (signal 60)");
}

TEST_CASE("in every order of ends the cause is never secondary, stopped or well") {
  std::vector<WorkerEnd> ends{fine, secondary, killed, terminated};
  const auto by_rank = [](const WorkerEnd& a, const WorkerEnd& b) { return a.rank < b.rank; };
  do {
    const auto first = first_failure(ends, std::nullopt);
    REQUIRE(first.has_value());
    CHECK(first->rank == 2);
  } while (std::next_permutation(ends.begin(), ends.end(), by_rank));
}

TEST_CASE("the first of several failures counts, unless the store knows which it was") {
  const std::vector<WorkerEnd> ends{left_nothing, killed};
  CHECK(first_failure(ends, std::nullopt)->rank == 3);
  CHECK(first_failure(ends, Cause{CauseKind::lost, 2, "h", "gone"})->rank == 2);
  CHECK(first_failure(ends, Cause{CauseKind::lost, 7, "h", "gone"})->rank == 3);
}

TEST_CASE("where all failed because of another, one that was not stopped counts; where none failed, none") {
  CHECK(first_failure({secondary, terminated}, std::nullopt)->exit_code() == 75);
  CHECK(first_failure({terminated, secondary}, std::nullopt)->exit_code() == 75);
  CHECK(first_failure({fine, terminated}, std::nullopt)->exit_code() == 143);
  CHECK(!first_failure({fine}, std::nullopt));
  CHECK(!first_failure({}, std::nullopt));
}

TEST_CASE("a report names rank, host, how it ended, its last lines and who failed because of it") {
  const auto lines = failure_report(killed, {1}, std::nullopt, "gpu-a", {"it hurts"});
  CHECK(contains(lines, "rank 2 on host gpu-a failed first: killed by signal 9 (SIGKILL)"));
  CHECK(contains(lines, "exit code 75: rank 1"));
  CHECK(contains(lines, "the last lines that rank 2 wrote to stderr:"));
  CHECK(contains(lines, "    it hurts"));
}

TEST_CASE("a report about secondary ends tells the store's cause") {
  const Cause cause{CauseKind::lost, 0, "gpu-b", "it was silent for 5 s"};
  const auto lines = failure_report(secondary, {1}, cause, "gpu-a", {});
  CHECK(contains(lines, "the job failed: rank 0 on host gpu-b was lost: it was silent for 5 s"));
  CHECK(!contains(lines, "failed first"));
}
