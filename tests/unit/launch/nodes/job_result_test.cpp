#include "unit/launch/prelude.hpp"

namespace {

const std::optional<Cause> no_cause;
constexpr int nobody = -1;

NodeEnd node(int number, std::optional<WorkerEnd> first) {
  NodeEnd end;
  end.node = number;
  end.host = "host-" + std::to_string(number);
  end.first = first;
  if (first && first->is_secondary()) {
    end.secondary.push_back(first->rank);
  }
  return end;
}

WorkerEnd exited(int rank, int code) {
  return {rank, {code, 0}, false, false};
}
WorkerEnd failed_after(int rank) {
  return exited(rank, 75);
}
WorkerEnd stopped(int rank, int signal = SIGTERM) {
  return {rank, {0, signal}, false, true};
}

std::string text_of(const JobResult& result) {
  std::string text;
  for (const std::string& line : result.report) {
    text += line + "\n";
  }
  return text;
}

bool contains(const JobResult& result, const std::string& part) {
  return text_of(result).find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a job that went well on all nodes is 0, is not started again and says nothing") {
  const JobResult result = decide_result({node(0, {}), node(1, {})}, no_cause, nobody, 5, 0);
  CHECK(result.exit_code == 0);
  CHECK(!result.restart);
  CHECK(result.report.empty());
}

TEST_CASE("in every order of nodes what failed because of another or was stopped is not the cause") {
  std::vector<NodeEnd> nodes{node(0, failed_after(0)), node(1, exited(1, 42)), node(2, stopped(2)), node(3, {})};
  const auto by_number = [](const NodeEnd& a, const NodeEnd& b) { return a.node < b.node; };
  do {
    const JobResult result = decide_result(nodes, no_cause, nobody, 0, 0);
    CHECK(result.exit_code == 42);
    CHECK(contains(result, "rank 1 on host host-1 failed first: exit code 42"));
    CHECK(contains(result, "with exit code 75: rank 0"));
  } while (std::next_permutation(nodes.begin(), nodes.end(), by_number));
}

TEST_CASE("of failures on several nodes the store's cause decides, then which was reported first, then the order") {
  const std::vector<NodeEnd> nodes{node(0, exited(0, 10)), node(1, exited(1, 11)), node(2, exited(2, 12))};
  const std::optional<Cause> cause = Cause{CauseKind::lost, 2, "host-2", "gone"};
  CHECK(first_node(nodes, cause, 1)->node == 2);
  CHECK(first_node(nodes, no_cause, 1)->node == 1);
  CHECK(first_node(nodes, no_cause, nobody)->node == 0);
  CHECK(first_node({node(0, {}), node(1, {})}, cause, 1) == nullptr);
}

TEST_CASE("where nobody's end is its own fault, an exit counts before a stop, and the cause is printed") {
  const std::optional<Cause> cause = Cause{CauseKind::timeout, -1, {}, "rank 3 is silent"};
  const JobResult result = decide_result({node(0, stopped(0)), node(1, failed_after(1))}, cause, nobody, 0, 0);
  CHECK(result.exit_code == 75);
  CHECK(contains(result, "the job failed: the job timed out: rank 3 is silent"));
  CHECK(!contains(result, "failed first"));
}

TEST_CASE("where all were stopped over a cause that is nobody's end, the exit code is that of a job that failed") {
  const std::optional<Cause> cause = Cause{CauseKind::lost, 0, "host-0", "it has sent nothing for 5.0 s"};
  const std::vector<NodeEnd> nodes{node(0, stopped(0)), node(1, stopped(1))};
  CHECK(decide_result(nodes, cause, nobody, 0, 0).exit_code == 75);
  CHECK(decide_result({node(0, stopped(0, SIGKILL))}, cause, nobody, 0, 0).exit_code == 75);  // it did not obey
  CHECK(decide_result(nodes, no_cause, nobody, 0, 0).exit_code == 128 + SIGTERM);
  std::vector<NodeEnd> interrupted = nodes;
  interrupted[0].stop_signal = SIGTERM;
  CHECK(decide_result(interrupted, cause, nobody, 0, 0).exit_code == 128 + SIGTERM);
}

TEST_CASE("a rank that threw counts as that, also where its launcher ended it before it had exited") {
  const std::optional<Cause> cause = Cause{CauseKind::exception, 1, "host-1", "no such file"};
  CHECK(decide_result({node(0, failed_after(0)), node(1, stopped(1))}, cause, nobody, 0, 0).exit_code == 1);
  CHECK(decide_result({node(0, failed_after(0)), node(1, exited(1, 3))}, cause, nobody, 0, 0).exit_code == 3);
}

TEST_CASE("the last lines are those of the host that failed first") {
  std::vector<NodeEnd> nodes{node(0, failed_after(0)), node(1, exited(1, 3))};
  nodes[0].last_lines = {"a consequence"};
  nodes[1].last_lines = {"the reason"};
  const JobResult result = decide_result(nodes, no_cause, nobody, 0, 0);
  CHECK(contains(result, "    the reason\n"));
  CHECK(!contains(result, "a consequence"));
}

TEST_CASE("a failure is tried again as often as allowed, and a line says which attempt begins and why") {
  const std::vector<NodeEnd> nodes{node(0, exited(4, 3))};
  for (int attempt = 0; attempt < 5; ++attempt) {
    CAPTURE(attempt);
    const JobResult result = decide_result(nodes, no_cause, nobody, 2, attempt);
    CHECK(result.restart == (attempt < 2));
    CHECK(result.exit_code == 3);
    CHECK(contains(result, "begins") == result.restart);
  }
  CHECK(contains(decide_result(nodes, no_cause, nobody, 2, 1),
                 "attempt 3 of 3 begins: rank 4 on host host-0 failed first: exit code 3\n"));
}

TEST_CASE("a usage error, an interrupted job and one that a signal stopped are not tried again") {
  CHECK(!decide_result({node(0, exited(0, 2))}, no_cause, nobody, 9, 0).restart);
  std::vector<NodeEnd> nodes{node(0, exited(0, 129)), node(1, failed_after(1))};
  CHECK(decide_result(nodes, no_cause, nobody, 9, 0).restart);
  nodes[1].interrupted = true;
  CHECK(!decide_result(nodes, no_cause, nobody, 9, 0).restart);
  nodes[1].interrupted = false;
  nodes[1].stop_signal = SIGTERM;
  const JobResult result = decide_result(nodes, no_cause, nobody, 9, 0);
  CHECK(!result.restart);
  CHECK(result.exit_code == 129);
  CHECK(result.report.size() == 1);
  CHECK(contains(result, "SIGTERM was forwarded to the workers; rank 0 on host host-0 ended first"));
}

TEST_CASE("a job that is stopped ends with 0 where all ended well, and with the signal where nothing had begun") {
  NodeEnd end = node(0, {});
  end.stop_signal = SIGINT;
  CHECK(decide_result({end}, no_cause, nobody, 0, 0).exit_code == 0);
  end.started = false;
  CHECK(decide_result({end}, no_cause, nobody, 0, 0).exit_code == 130);
}

TEST_CASE("a killed process that does not go is no success") {
  NodeEnd end = node(0, {});
  end.abandoned = true;
  CHECK(decide_result({end}, no_cause, nobody, 0, 0).exit_code == 137);
}

TEST_CASE("ends and results travel as they are, and other bytes are refused") {
  NodeEnd end = node(3, WorkerEnd{7, {0, SIGKILL}, false, true});
  end.secondary = {1, 2};
  end.last_lines = {"one", std::string("t\0wo", 4)};
  end.stop_signal = SIGTERM;
  end.abandoned = true;
  const std::string value = dtrain::to_bytes(end);
  const NodeEnd read = dtrain::from_bytes<NodeEnd>(value, "it");
  CHECK(read.node == 3);
  CHECK(read.host == "host-3");
  REQUIRE(read.first.has_value());
  CHECK(read.first->status == end.first->status);
  CHECK(read.first->stopped);
  CHECK(!read.first->left);
  CHECK(read.secondary == end.secondary);
  CHECK(read.last_lines == end.last_lines);
  CHECK(read.stop_signal == SIGTERM);
  CHECK(read.abandoned);
  CHECK(read.started);
  for (std::size_t length = 0; length < value.size(); ++length) {
    CHECK_THROWS_AS(dtrain::from_bytes<NodeEnd>(value.substr(0, length), "it"), dtrain::Error);
  }
  CHECK_THROWS_AS(dtrain::from_bytes<NodeEnd>(value + "x", "it"), dtrain::Error);
  const JobResult result = dtrain::from_bytes<JobResult>(dtrain::to_bytes(JobResult{5, true, {"why"}}), "it");
  CHECK(result.exit_code == 5);
  CHECK(result.restart);
  CHECK(result.report == std::vector<std::string>{"why"});
}
