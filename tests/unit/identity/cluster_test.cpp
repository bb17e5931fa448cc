// TF_CONFIG, CLUSTER_SPEC and SM_HOSTS: which entry is which rank, and what is refused.

#include "unit/identity/prelude.hpp"

namespace {

Environment tf(const std::string& value) {
  return {{"TF_CONFIG", value}};
}

std::string cluster(const std::string& roles, const std::string& task) {
  return "{\"cluster\": {" + roles + "}, \"task\": " + task + "}";
}

const std::string two_workers = R"("worker": ["h0:1", "h1:2"])";

}  // namespace

TEST_CASE("the chief, or master, is rank 0 and workers follow in order") {
  for (const std::string chief : {"chief", "master"}) {
    const std::string roles = two_workers + ", \"" + chief + R"(": ["c:9"], "ps": ["p:1"], "evaluator": ["e:1"])";
    CHECK(process_identity(tf(cluster(roles, "{\"type\": \"" + chief + "\", \"index\": 0}"))).rank == 0);
    const ProcessIdentity last = process_identity(tf(cluster(roles, R"({"type": "worker", "index": "1"})")));
    CHECK(last.rank == 2);
    CHECK(last.world_size == 3);
    CHECK(last.master_addr == "c");
    CHECK(last.master_port == 9);
  }
}

TEST_CASE("entries of one host are local ranks of one node, nodes are in the order first seen") {
  const std::string roles = R"("worker": ["b:1", "a:1", "b:2", "a:2", "b:3"])";
  const std::vector<std::tuple<int, int, int>> table{{0, 0, 3}, {0, 1, 2}, {1, 0, 3}, {1, 1, 2}, {2, 0, 3}};
  for (std::size_t i = 0; i < table.size(); ++i) {
    const ProcessIdentity who =
        process_identity(tf(cluster(roles, R"({"type": "worker", "index": )" + std::to_string(i) + "}")));
    const auto& [local_rank, node, local_size] = table[i];
    CHECK(who.local_rank == local_rank);
    CHECK(who.node_rank == node);
    CHECK(who.local_world_size == local_size);
    CHECK(who.node_count == 2);
    CHECK(who.provisional == std::vector<std::string>{"local_rank", "local_world_size", "node_rank", "node_count"});
  }
  const ProcessIdentity one_host =
      process_identity(tf(cluster(R"("worker": ["h:1", "h:2"])", R"({"type": "worker", "index": 1})")));
  CHECK(one_host.master_addr == "h");
  CHECK(one_host.node_count == 1);
}

TEST_CASE("MASTER_PORT wins over the entry's port, and MASTER_ADDR has no say") {
  Environment job = tf(cluster(two_workers, R"({"type": "worker", "index": 1})"));
  job["MASTER_PORT"] = "77";
  job["MASTER_ADDR"] = "elsewhere";
  const ProcessIdentity who = process_identity(job);
  CHECK(who.master_addr == "h0");
  CHECK(who.master_port == 77);
  CHECK(who.ignored == std::vector<std::string>{"MASTER_ADDR='elsewhere'"});
  const std::string portless = cluster(R"("worker": ["h0", "h1"])", R"({"type": "worker", "index": 1})");
  CHECK(process_identity(tf(portless)).master_port == 29500);
}

TEST_CASE("no cluster, or an empty one, is as good as unset") {
  for (const char* value :
       {"{}", R"({"cluster": {}})", R"({"cluster": null})", R"({"task": {"type": "ps", "index": 0}})",
        R"({"cluster": {}, "task": {"type": "worker", "index": 0}})"}) {
    CAPTURE(value);
    CHECK(process_identity(tf(value)).launcher == "single");
  }
}

TEST_CASE("each way in which TF_CONFIG is wrong has its code, and the sentence names the variable and its value") {
  const std::string worker0 = R"({"type": "worker", "index": 0})";
  const std::vector<std::pair<std::string, std::string>> table{
      {"x", "tf-malformed"},
      {"[]", "tf-malformed"},
      {"{\"cluster\": {\"worker\": [\"h:1\"]", "tf-malformed"},
      {R"({"cluster": [1]})", "tf-malformed"},
      {R"({"cluster": "h:1"})", "tf-malformed"},
      {cluster(R"("worker": "h:1")", worker0), "tf-malformed"},
      {cluster(R"("worker": [1])", worker0), "tf-malformed"},
      {cluster(R"("worker": {"0": "h:1"})", worker0), "tf-malformed"},
      {cluster(R"("gpus": ["h:1"])", worker0), "tf-malformed"},
      {cluster(R"("chief": ["a:1", "b:1"])", worker0), "tf-malformed"},
      {cluster(R"("chief": ["a:1"], "master": ["b:1"])", worker0), "tf-malformed"},
      {R"({"sparseCluster": {"worker": {"0": "h:1"}}, "task": {"type": "worker", "index": 0}})", "tf-malformed"},
      {cluster(two_workers, R"({"type": "gpu", "index": 0})"), "tf-malformed"},
      {cluster(two_workers, R"({"type": 1, "index": 0})"), "tf-malformed"},
      {cluster(two_workers, R"(["worker", 0])"), "tf-malformed"},
      {cluster(R"("worker": [" :1"])", worker0), "tf-malformed"},
      {cluster(two_workers, "null"), "tf-no-task"},
      {cluster(two_workers, "{}"), "tf-no-task"},
      {cluster(two_workers, R"({"type": "worker"})"), "tf-no-task"},
      {cluster(two_workers, R"({"index": 0})"), "tf-no-task"},
      {"{\"cluster\": {" + two_workers + "}}", "tf-no-task"},
      {cluster(two_workers, R"({"type": "ps", "index": 0})"), "tf-not-trainer"},
      {cluster(two_workers, R"({"type": "evaluator", "index": 0})"), "tf-not-trainer"},
      {cluster(two_workers, R"({"type": "worker", "index": 2})"), "tf-bad-index"},
      {cluster(two_workers, R"({"type": "worker", "index": -1})"), "tf-bad-index"},
      {cluster(two_workers, R"({"type": "worker", "index": 0.5})"), "tf-bad-index"},
      {cluster(two_workers, R"({"type": "worker", "index": "x"})"), "tf-bad-index"},
      {cluster(two_workers, R"({"type": "worker", "index": "99999999999999999999"})"), "tf-bad-index"},
      {cluster(two_workers, R"({"type": "chief", "index": 0})"), "tf-bad-index"},
      {cluster(R"("worker": ["fd00::1", "h:1"])", worker0), "ambiguous-address"},
      {cluster(R"("worker": ["h:1", "h:x"])", worker0), "bad-port"},
  };
  for (const auto& [text, code] : table) {
    const std::string& value = text;  // what CAPTURE can name
    CAPTURE(value);
    const Refusal refused = refusal_of(tf(value));
    CHECK(refused.code == code);
    CHECK_CONTAINS(refused.sentence, "TF_CONFIG='");
    Environment forced = tf(value);
    forced["DTRAIN_LAUNCHER"] = "none";
    CHECK(refusal_of(forced).code == "");
  }
}

TEST_CASE("Vertex's ranks are worker pool 0, then worker pool 1") {
  const auto vertex = [](const std::string& task) {
    return Environment{{"CLUSTER_SPEC",
                        "{\"cluster\": {\"workerpool1\": [\"b:1\", \"c:1\"], \"workerpool0\": [\"a:2222\"], "
                        "\"workerpool2\": [\"d:1\"]}, \"environment\": \"cloud\", \"task\": " +
                            task + ", \"job\": \"{}\"}"}};
  };
  const ProcessIdentity who = process_identity(vertex(R"({"type": "workerpool1", "index": 1, "trial": ""})"));
  CHECK(who.launcher == "vertex");
  CHECK(who.rank == 2);
  CHECK(who.world_size == 3);
  CHECK(who.master_addr == "a");
  CHECK(who.master_port == 2222);
  CHECK(refusal_of(vertex(R"({"type": "workerpool2", "index": 0})")).code == "tf-not-trainer");
  CHECK(refusal_of(vertex(R"({"type": "worker", "index": 0})")).code == "tf-malformed");
  CHECK(refusal_of(vertex("null")).code == "tf-no-task");
  CHECK_CONTAINS(refusal_of(vertex("null")).sentence, "CLUSTER_SPEC='");
  CHECK(refusal_of(variables("CLUSTER_SPEC=local")).code == "tf-malformed");
}

TEST_CASE("SageMaker's rank is the place in the list of hosts") {
  Environment job{{"SM_HOSTS", R"(["algo-1", "algo-10", "algo-2"])"}, {"SM_CURRENT_HOST", "algo-10"}};
  CHECK(process_identity(job).rank == 1);
  CHECK(process_identity(job).provisional.empty());
  job["MASTER_PORT"] = "99";
  CHECK(process_identity(job).master_port == 99);
  job["SM_CURRENT_HOST"] = "algo-3";
  CHECK(refusal_of(job).code == "sm-host");
  CHECK_CONTAINS(refusal_of(job).sentence, "SM_CURRENT_HOST='algo-3' is not in SM_HOSTS='[\"algo-1\"");
  for (const char* bad :
       {"algo-3", "[]", "{}", "[3]", "[\"algo-3\", \"\"]", "[\"algo-3\", \"algo-3\"]", "[\"algo-3\""}) {
    CAPTURE(bad);
    job["SM_HOSTS"] = bad;
    CHECK(refusal_of(job).code == "sm-host");
    CHECK_CONTAINS(refusal_of(job).sentence, "SM_HOSTS='" + std::string(bad) + "'");
  }
  job["SM_HOSTS"] = "[\"algo-3\"]";
  CHECK(process_identity(job).master_addr == "127.0.0.1");
  job.erase("SM_CURRENT_HOST");
  CHECK(process_identity(job).launcher == "single");
  CHECK(process_identity(job).warnings.size() == 1);
}
