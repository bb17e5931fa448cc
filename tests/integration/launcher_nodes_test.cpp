// ctest: TIMEOUT 240 RUN_SERIAL ON
// launch::PerNode on several nodes, with real processes: two launchers on this machine, each with a host identity of
// its own, are two nodes.

#include "integration/prelude.hpp"
#include "support/gate.hpp"

using support::below;

namespace {

constexpr std::chrono::milliseconds grace_of_a_session{500};

std::string free_port() {
  return std::to_string(support::free_port());
}

/// Whether somebody listens at the port of this machine before a deadline.
bool is_listened_at(const std::string& port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(port)));
  for (const dtrain::Deadline deadline = support::soon(); !deadline.passed(); ::usleep(2000)) {
    const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool connected = ::connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    ::close(client);
    if (connected) return true;
  }
  return false;
}

/// Whether the process has not taken the signal yet.
bool is_pending(pid_t process, int signal) {
  const std::string status = content("/proc/" + std::to_string(process) + "/status");
  for (const std::string name : {"SigPnd:", "ShdPnd:"}) {
    const std::size_t at = status.find(name);
    if (at == std::string::npos) continue;
    const unsigned long long mask = std::stoull(status.substr(at + name.size()), nullptr, 16);
    if ((mask >> (signal - 1) & 1) != 0) return true;
  }
  return false;
}

const std::string secret = "0123456789abcdef0123456789abcdef";

/// That of one node of a job.
std::unique_ptr<Program> launcher(std::size_t nodes, std::size_t node, const std::string& port,
                                  const std::vector<std::string>& arguments, Program::Variables variables = {},
                                  const std::string& program = probe) {
  std::vector<std::string> all{"--nnodes=" + std::to_string(nodes), "--node-rank=" + std::to_string(node),
                               "--master-addr=127.0.0.1", "--master-port=" + port};
  all.insert(all.end(), arguments.begin(), arguments.end());
  variables.emplace("DTRAIN_SECRET", secret);
  variables.emplace("DTRAIN_HOST_ID", "host-" + std::to_string(node));
  return std::make_unique<Program>(program, all, variables);
}

/// The launchers of one job, node 0 first.
class Nodes {
 public:
  /// @param workers of each node
  Nodes(const std::vector<int>& workers, std::vector<std::string> arguments, const Program::Variables& variables = {},
        const std::string& program = probe)
      : mark(new_mark()), port(free_port()) {
    arguments.push_back(mark);
    for (std::size_t node = 0; node < workers.size(); ++node) {
      std::vector<std::string> own{"--nproc-per-node=" + std::to_string(workers[node])};
      own.insert(own.end(), arguments.begin(), arguments.end());
      launchers.push_back(launcher(workers.size(), node, port, own, variables, program));
    }
  }

  Program& operator[](std::size_t node) { return *launchers[node]; }

  std::vector<Result> wait(dtrain::Deadline deadline = support::soon()) {
    std::vector<Result> results;
    for (const auto& launcher : launchers) {
      launcher->close_input();
      results.push_back(launcher->wait(deadline));
    }
    return results;
  }

  std::string mark;
  std::string port;
  std::vector<std::unique_ptr<Program>> launchers;
};

}  // namespace

TEST_CASE("uneven nodes make one job, whose ranks follow the nodes, and node 0 says so in one line") {
  Nodes nodes({3, 1, 2}, {"*:join", "*:environment:DTRAIN_RANK", "*:environment:DTRAIN_WORLD_SIZE",
                          "*:environment:DTRAIN_LOCAL_RANK", "*:environment:DTRAIN_LOCAL_WORLD_SIZE",
                          "*:environment:DTRAIN_NODE_RANK", "*:environment:DTRAIN_NODE_COUNT"});
  const std::vector<Result> results = nodes.wait();
  int rank = 0;
  for (int node = 0; node < 3; ++node) {
    const Result& result = results[static_cast<std::size_t>(node)];
    CHECK(result.exit_code == 0);
    const int workers = node == 0 ? 3 : node;
    CHECK(lines_of(result.output).size() == static_cast<std::size_t>(workers) * 6);
    for (int local_rank = 0; local_rank < workers; ++local_rank, ++rank) {
      const std::string prefix = "[" + std::to_string(rank) + "] DTRAIN_";
      CHECK_CONTAINS(result.output, prefix + "RANK=" + std::to_string(rank) + "\n", prefix + "WORLD_SIZE=6\n",
                     prefix + "LOCAL_RANK=" + std::to_string(local_rank) + "\n",
                     prefix + "LOCAL_WORLD_SIZE=" + std::to_string(workers) + "\n",
                     prefix + "NODE_RANK=" + std::to_string(node) + "\n", prefix + "NODE_COUNT=3\n");
    }
  }
  CHECK(results[0].error == "dtrain: 6 ranks on 3 nodes (3 on node 0, 1 on node 1, 2 on node 2), store at 127.0.0.1:" +
                                nodes.port + ", nodes from --nnodes='3'; network: lo (127.0.0.1), within this host\n");
  CHECK(results[1].error == "");
  CHECK(results[2].error == "");
}

TEST_CASE("a failure on one node stops the workers of all, and every launcher says which rank failed first, and how") {
  for (const int victim : {0, 3}) {  // on node 0, on node 1
    CAPTURE(victim);
    const std::string who = std::to_string(victim);
    Nodes nodes({2, 2}, {"*:ignore:15", "*:join", who + ":stderr:it hurts here", who + ":exit:42", "*:sleep:60000"});
    REQUIRE(nodes[victim == 0 ? 0 : 1].wait_for("it hurts here"));
    const support::Stopwatch since_fallen;
    const std::vector<Result> results = nodes.wait();
    CHECK(since_fallen.elapsed() < two_seconds);
    for (const Result& result : results) {
      support::check_ended(result, 42,
                           {"dtrain: rank " + who + " on host ",
                            victim == 0 ? "(node 0) failed first: exit code 42" : "(node 1) failed first: exit code 42",
                            "dtrain:     it hurts here"});
    }
    CHECK(support::processes_with(nodes.mark).empty());
  }
}

TEST_CASE("kill -9 of a worker at any moment ends the job on both nodes within two seconds, with its signal") {
  std::mt19937 random(17);
  for (int round = 0; round < 10; ++round) {
    CAPTURE(round);
    const support::TemporaryFile file;
    const std::string victim = std::to_string(below(random, 4));
    Nodes nodes({2, 2}, {victim + ":process:" + file.path, "*:join", "*:lines:500", "*:wait-for-failure"});
    const dtrain::Deadline deadline = support::soon();
    while (content(file.path).empty() && !deadline.passed())
      ::usleep(500);
    REQUIRE(!content(file.path).empty());
    ::usleep(below(random, 30000));
    REQUIRE(::kill(static_cast<pid_t>(std::stoi(content(file.path))), SIGKILL) == 0);
    const support::Stopwatch since_killed;
    const std::vector<Result> results = nodes.wait();
    CHECK(since_killed.elapsed() < two_seconds);
    for (const Result& result : results)
      support::check_ended(result, 137, {"rank " + victim + " on host ", "killed by signal 9 (SIGKILL)"});
    CHECK(support::processes_with(nodes.mark).empty());
  }
}

TEST_CASE("leaving and returning 0 is a success on a node that ends long before the other") {
  Nodes nodes({1, 1}, {"*:join", "1:sleep:700"});
  for (const Result& result : nodes.wait())
    CHECK(result.exit_code == 0);
}

TEST_CASE("an exit code 0 before leaving is a loss on another node, too") {
  Nodes nodes({1, 1}, {"*:join", "1:exit:0", "*:wait-for-failure"});
  for (const Result& result : nodes.wait())
    support::check_ended(result, 1, {"rank 1 on host ", "exit code 0 before it had left"});
}

TEST_CASE("an exit code other than 0 after leaving stops the other nodes, too") {
  Nodes nodes({1, 1}, {"*:join", "1:leave", "1:exit:3", "0:sleep:60000"});
  for (const Result& result : nodes.wait())
    support::check_ended(result, 3, {"rank 1 on host "});
}

TEST_CASE("a restart starts the workers of all nodes again, and refuses the stragglers of the former attempt") {
  const support::TemporaryFile file;
  Nodes nodes({2, 1}, {"--max-restarts=2", "1@0:straggler:" + file.path, "*:join", "2@0:exit:3", "*@0:sleep:60000",
                       "0:process:" + file.path + ".go", "*:await:" + file.path, "*:environment:DTRAIN_ATTEMPT"});
  const std::vector<Result> results = nodes.wait();
  for (const Result& result : results)
    support::check_ended(result, 0, {"dtrain: attempt 2 of 3 begins: rank 2 on host "});
  CHECK_CONTAINS(results[0].output, "[0] DTRAIN_ATTEMPT=1\n", "[1] DTRAIN_ATTEMPT=1\n");
  CHECK_CONTAINS(results[1].output, "[2] DTRAIN_ATTEMPT=1\n");
  CHECK_CONTAINS(content(file.path), "attempt 0 of the job, which has been started again as attempt 1");
}

TEST_CASE("a usage error of the first worker to fall is not tried again on any node") {
  Nodes nodes({1, 1}, {"--max-restarts=3", "*:join", "1:exit:2", "*:wait-for-failure"});
  for (const Result& result : nodes.wait()) {
    CHECK(result.exit_code == 2);
    CHECK(!contains(result.error, "attempt 2"));
  }
}

TEST_CASE("a worker of another node that is stopped before it has joined counts as lost after the liveness time") {
  const TemporaryDirectory directory;
  Nodes nodes({1, 1}, {"1:stdout:up\n", "1:await:" + directory.path + "/never", "*:join", "*:wait-for-failure"},
              {{"DTRAIN_LIVENESS_SECONDS", "1"}});
  REQUIRE(nodes[1].wait_for("[1] up"));
  const std::vector<pid_t> workers = support::children_of(nodes[1].process());
  REQUIRE(workers.size() == 1);
  REQUIRE(::kill(workers[0], SIGSTOP) == 0);
  const std::vector<Result> results = nodes.wait();
  for (const Result& result : results)
    support::check_ended(result, 75, {"was stopped by SIGSTOP before it had joined the job"});
  CHECK_CONTAINS(results[0].error, "[0] cause: rank 1 on host ");
}

TEST_CASE("a launcher that a signal ends stops the workers of all nodes in order, and nothing is tried again") {
  for (const std::size_t told : {std::size_t{0}, std::size_t{1}}) {
    CAPTURE(told);
    Nodes nodes({1, 2}, {"--max-restarts=3", "*:on-term:21", "*:join", "*:stdout:up\n", "*:sleep:60000"});
    REQUIRE(nodes[0].wait_for("[0] up"));
    REQUIRE(nodes[1].wait_for("[1] up"));
    REQUIRE(nodes[1].wait_for("[2] up"));
    nodes[told].signal(SIGTERM);
    for (const Result& result : nodes.wait()) {
      support::check_ended(result, 21, {"SIGTERM was forwarded to the workers"});
      CHECK(!contains(result.error, "attempt 2"));
    }
    CHECK(support::processes_with(nodes.mark).empty());
  }
}

TEST_CASE("a signal that all launchers get at once is one request: the workers have their time") {
  Nodes nodes({1, 1}, {"*:ignore:15", "*:join", "*:stdout:up\n", "*:sleep:2000"});
  REQUIRE(nodes[0].wait_for("[0] up"));
  REQUIRE(nodes[1].wait_for("[1] up"));
  nodes[0].signal(SIGTERM);
  ::usleep(50000);
  nodes[1].signal(SIGTERM);
  for (const Result& result : nodes.wait())
    CHECK(result.exit_code == 0);
}

TEST_CASE("a second signal to one launcher ends the grace period of the workers of all nodes") {
  Nodes nodes({1, 1}, {"*:ignore:15", "*:join", "*:stdout:up\n", "*:sleep:60000"});
  REQUIRE(nodes[0].wait_for("[0] up"));
  REQUIRE(nodes[1].wait_for("[1] up"));
  nodes[1].signal(SIGTERM);
  ::usleep(50000);
  nodes[1].signal(SIGTERM);
  const support::Stopwatch since_second;
  for (const Result& result : nodes.wait())
    CHECK(result.exit_code == 137);
  CHECK(since_second.elapsed() < two_seconds);
  CHECK(support::processes_with(nodes.mark).empty());
}

TEST_CASE("kill -9 of one launcher ends the job on the other node, which names the node that is gone") {
  for (const std::size_t victim : {std::size_t{0}, std::size_t{1}}) {
    CAPTURE(victim);
    Nodes nodes({2, 2}, {"*:ignore:15", "*:join", "*:stdout:up\n", "*:sleep:60000"});
    REQUIRE(nodes[0].wait_for("[1] up"));
    REQUIRE(nodes[1].wait_for("[3] up"));
    nodes[victim].signal(SIGKILL);
    const support::Stopwatch since_killed;
    const std::vector<Result> results = nodes.wait();
    CHECK(since_killed.elapsed() < two_seconds + grace_of_a_session);
    CHECK(results[victim].exit_code == 137);
    const Result& survivor = results[1 - victim];
    support::check_ended(
        survivor, 75,
        {victim == 0 ? "dtrain: node 0's launcher at 127.0.0.1:" : "dtrain: the launcher of node 1 on host ",
         "was lost"});
    CHECK(support::all_gone(nodes.mark, support::soon(std::chrono::seconds(5))));
  }
}

TEST_CASE("a launcher that is stopped counts as lost after the liveness time, and goes when it is let go") {
  Nodes nodes({1, 1}, {"*:join", "*:stdout:up\n", "*:sleep:60000"}, {{"DTRAIN_LIVENESS_SECONDS", "1"}});
  REQUIRE(nodes[0].wait_for("[0] up"));
  REQUIRE(nodes[1].wait_for("[1] up"));
  nodes[1].signal(SIGSTOP);
  const support::Stopwatch since_stopped;
  const Result survivor = nodes[0].finish();
  CHECK(since_stopped.elapsed() < two_seconds + std::chrono::seconds(2));
  support::check_ended(survivor, 75, {"node 1 on host "});
  nodes[1].signal(SIGCONT);
  CHECK(nodes[1].finish().exit_code != 0);
  CHECK(support::all_gone(nodes.mark, support::soon(std::chrono::seconds(5))));
}

TEST_CASE("a launcher that does not come is named within the timeout, and one that has no store to go to says which") {
  const std::string port = free_port();
  const auto impatient = [&](std::size_t node) {
    auto started = launcher(3, node, port, {"*:join"}, {{"DTRAIN_TIMEOUT_SECONDS", "3.5"}});
    started->close_input();
    return started;
  };
  const auto first = impatient(0);
  const auto second = impatient(1);
  for (Program* each : {first.get(), second.get()})
    support::check_ended(each->wait(), 75, {"node 2 of 3 did not join within 3.5 s"});
  support::check_ended(impatient(1)->wait(), 2, {"connecting to 127.0.0.1 port "});
}

TEST_CASE("a launcher that waits for the others can be ended by a signal") {
  for (const auto& [signal, name] :
       std::map<int, std::string>{{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGHUP, "SIGHUP"}, {SIGQUIT, "SIGQUIT"}}) {
    const std::string port = free_port();
    Program program(probe, {"--nnodes=2", "--node-rank=0", "--master-addr=127.0.0.1", "--master-port=" + port},
                    {{"DTRAIN_SECRET", secret}});
    program.close_input();
    REQUIRE(is_listened_at(port));
    program.signal(signal);
    const Result result = program.wait();
    support::check_ended(result, 128 + signal, {name + " came before all launchers had joined"});
  }
}

TEST_CASE("a launcher whose workers have ended can be ended by a signal, and no other attempt begins on any node") {
  for (const int signal : {SIGTERM, SIGHUP, SIGQUIT}) {
    CAPTURE(signal);
    const TemporaryDirectory directory;
    Nodes nodes({1, 1},
                {"--max-restarts=3", "*:join", "*:stdout:up\n", "0:await:" + directory.path + "/go", "0:exit:3",
                 "1:sleep:60000"},
                {{"DTRAIN_LIVENESS_SECONDS", "60"}, {"UCX_DEBUG_SIGNO", "0"}});
    REQUIRE(nodes[0].wait_for("[0] up"));
    REQUIRE(nodes[1].wait_for("[1] up"));
    nodes[1].signal(SIGSTOP);  // node 0 waits for the end of node 1
    REQUIRE(reaches_state(nodes[1].process(), "T"));
    std::ofstream(directory.path + "/go") << "go";
    REQUIRE(support::holds_soon([&] { return support::children_of(nodes[0].process()).empty(); }));
    nodes[0].signal(signal);
    REQUIRE(support::holds_soon([&] { return !is_pending(nodes[0].process(), signal); }));
    nodes[1].signal(SIGCONT);
    for (const Result& result : nodes.wait()) {
      support::check_ended(result, 3, {"rank 0 on host "});
      CHECK(!contains(result.error, "attempt 2"));
    }
  }
}

TEST_CASE("a launcher that is to find node 0 at every address says at once that it cannot") {
  const Result result = support::run(probe, {"--nnodes=2", "--node-rank=1", "--master-addr=0.0.0.0", "*:join"},
                                     {{"DTRAIN_SECRET", secret}});
  support::check_ended(result, 2, {"node 1 cannot connect to node 0 at 0.0.0.0", "--master-addr=HOST"});
  CHECK(result.time < std::chrono::seconds(30));
}

TEST_CASE("several nodes without a secret, or with two, are errors that say what to do") {
  const std::vector<std::string> node{"--nnodes=2", "--node-rank=0", "--master-addr=127.0.0.1", "*:join"};
  const Result none = support::run(probe, node);
  support::check_ended(none, 2, {"openssl rand -hex 32", "--nnodes='2'"});
  const Result stray =
      support::run(probe, {"*:join"}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}});
  support::check_ended(stray, 2, {"RANK='0', WORLD_SIZE='2'", "--nnodes=1"});
  const std::string port = free_port();
  const auto first = launcher(2, 0, port, {"*:join"}, {{"DTRAIN_TIMEOUT_SECONDS", "3"}});
  const auto second =
      launcher(2, 1, port, {"*:join"}, {{"DTRAIN_TIMEOUT_SECONDS", "3"}, {"DTRAIN_SECRET", secret + "x"}});
  second->close_input();
  support::check_ended(second->wait(), 2, {"secret"});
  first->close_input();
  CHECK(first->wait().exit_code == 75);
}

TEST_CASE("two launchers on one host are told so, both of them") {
  Nodes nodes({1, 1}, {"*:join"}, {{"DTRAIN_HOST_ID", "the same"}});
  for (const Result& result : nodes.wait())
    support::check_ended(result, 2, {"nodes 0 and 1 are one host", "DTRAIN_HOST_ID"});
}

TEST_CASE("a node that cannot start its workers again tells the others why") {
  const TemporaryDirectory directory;
  REQUIRE(support::run("/bin/sh", {"-c", "echo > " + directory.path + "/attempt-1"}).exit_code == 0);
  const std::string port = free_port();
  std::vector<std::string> arguments{"--max-restarts=1", "*:join", "0@0:exit:3", "*@0:wait-for-failure",
                                     "*:sleep:60000"};
  const auto healthy = launcher(2, 0, port, arguments);
  arguments.push_back("--log-dir=" + directory.path);
  const auto failing = launcher(2, 1, port, arguments);
  healthy->close_input();
  failing->close_input();
  support::check_ended(healthy->wait(), 75, {"dtrain: the launcher of node 1 on host ", "attempt-1"});
  CHECK(failing->wait().exit_code == 2);
}

TEST_CASE("a model trains on ranks of two nodes, and a rank that dies ends the training on both") {
  const std::string training = DTRAIN_TEST_PROGRAMS_DIR "/store_training";
  Nodes well({2, 1}, {"20"}, {}, training);
  const std::vector<Result> results = well.wait();
  for (int rank = 0; rank < 3; ++rank) {
    const Result& result = results[rank < 2 ? 0 : 1];
    CHECK(result.exit_code == 0);
    const std::string who = std::to_string(rank);
    CHECK(contains(result.output, "[" + who + "] rank " + who + " of 3 on node " + (rank < 2 ? "0" : "1") +
                                      " of 2: weight -0.0390625 after 20 steps\n"));  // 20 x (1 + 2 + 3) / 3 / 1024
  }
  Nodes hurt({1, 1}, {"1000000", "1", "phases"}, {}, training);
  REQUIRE(hurt[0].wait_for("[0] phase steady"));
  REQUIRE(hurt[1].wait_for("[1] phase steady"));
  std::vector<pid_t> workers;
  for (const pid_t process : support::processes_with(hurt.mark)) {
    if (process != hurt[0].process() && process != hurt[1].process()) {
      workers.push_back(process);
    }
  }
  REQUIRE(workers.size() == 2);
  REQUIRE(::kill(workers[1], SIGKILL) == 0);
  const support::Stopwatch since_killed;
  for (const Result& result : hurt.wait()) {
    support::check_ended(result, 137,
                         {"failed first: killed by signal 9", "failed because of it, with exit code 75: rank "});
  }
  CHECK(since_killed.elapsed() < two_seconds);
  CHECK(support::processes_with(hurt.mark).empty());
}
