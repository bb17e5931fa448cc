// ctest: LABELS long no-asan no-tsan
// What Open MPI itself never frees is no leak of dtrain's:
// ctest: ENVIRONMENT LSAN_OPTIONS=detect_leaks=0
// ctest: TIMEOUT 400 RUN_SERIAL ON
// Jobs under mpirun on several virtual hosts: what they compute, what crosses the links, how they end.

#include "integration/prelude.hpp"
#include "support/traffic_model.hpp"
#include "support/virtual_cluster.hpp"

using support::VirtualCluster;

namespace {

const std::string mpirun = DTRAIN_TEST_MPIRUN;  // empty without MPI
const std::string training = DTRAIN_TEST_PROGRAMS_DIR "/mpi_training";

/// Why these tests cannot run; empty where they can.
std::string obstacle(const VirtualCluster& cluster) {
  if (!cluster.problem.empty()) return cluster.problem;
  if (mpirun.empty()) return "built without MPI (libopenmpi-dev and openmpi-bin provide one)";
  const std::string version = support::run(mpirun, {"--version"}).output;
  return contains(version, "Open MPI") || contains(version, "OpenRTE") ? "" : mpirun + " is not Open MPI's";
}

constexpr std::chrono::seconds liveness{1};
const Program::Variables as_root{{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                 {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                 {"DTRAIN_LIVENESS_SECONDS", std::to_string(liveness.count())}};

/// mpirun on host 0, with `workers[h]` ranks on host h.
std::unique_ptr<Program> start(const VirtualCluster& cluster, const std::vector<int>& workers,
                               const std::vector<std::string>& arguments) {
  std::string hosts;
  int ranks = 0;
  for (std::size_t host = 0; host < workers.size(); ++host) {
    hosts +=
        (host == 0 ? "" : ",") + VirtualCluster::host(static_cast<int>(host)) + ":" + std::to_string(workers[host]);
    ranks += workers[host];
  }
  std::vector<std::string> all{"--host", hosts, "-n", std::to_string(ranks), "--oversubscribe", "--bind-to", "none"};
  for (const auto& [name, value] : {std::pair<std::string, std::string>{"plm_rsh_agent", cluster.rsh()},
                                    {"btl", "self,vader,tcp"},
                                    {"btl_tcp_if_include", "10.77.0.0/24"},
                                    {"oob_tcp_if_include", "10.77.0.0/24"}}) {
    all.insert(all.end(), {"--mca", name, value});
  }
  all.insert(all.end(), {"-x", "DTRAIN_LIVENESS_SECONDS", training});
  all.insert(all.end(), arguments.begin(), arguments.end());
  return cluster.start(0, mpirun, all, as_root);
}

Result run(const VirtualCluster& cluster, const std::vector<int>& workers, const std::vector<std::string>& arguments) {
  const std::unique_ptr<Program> program = start(cluster, workers, arguments);
  program->close_input();
  return program->wait(support::soon(std::chrono::seconds(60)));
}

/// The same ranks on this host alone, which variables group into the nodes that the hosts would be: mpirun says that
/// all share a host, so it is not asked for more than the rank. They are one application, as in mpi_contract_test.cpp.
Result run_here(const std::vector<int>& workers, const std::string& arguments) {
  std::string host_of_rank;
  for (std::size_t host = 0; host < workers.size(); ++host) {
    for (int worker = 0; worker < workers[host]; ++worker)
      host_of_rank += " " + std::to_string(host);
  }
  const std::string command = "set --" + host_of_rank + "; shift $OMPI_COMM_WORLD_RANK; exec env DTRAIN_HOST_ID=$1 " +
                              "DTRAIN_RANK=$OMPI_COMM_WORLD_RANK DTRAIN_WORLD_SIZE=$OMPI_COMM_WORLD_SIZE "
                              "DTRAIN_MASTER_ADDR=127.0.0.1 DTRAIN_MASTER_PORT=" +
                              std::to_string(support::free_port()) + " " + training + " " + arguments;
  const int ranks = std::accumulate(workers.begin(), workers.end(), 0);
  return support::run(mpirun,
                      {"--oversubscribe", "--bind-to", "none", "-n", std::to_string(ranks), "/bin/sh", "-c", command},
                      as_root, std::chrono::seconds(60));
}

std::string digest_of(const Result& result) {
  CAPTURE(result.error);
  CHECK(result.exit_code == 0);
  const std::size_t place = result.output.find("digest ");
  REQUIRE_MESSAGE(place != std::string::npos, result.output);
  return result.output.substr(place + 7, 64);
}

double greatest_difference(const std::string& a, const std::string& b) {
  REQUIRE(a.size() == b.size());
  REQUIRE(!a.empty());
  double greatest = 0;
  for (std::size_t at = 0; at < a.size(); at += sizeof(float)) {
    float left = 0;
    float right = 0;
    std::memcpy(&left, a.data() + at, sizeof left);
    std::memcpy(&right, b.data() + at, sizeof right);
    greatest = std::max(greatest, std::abs(static_cast<double>(left) - static_cast<double>(right)));
  }
  return greatest;
}

/// What hosts sent so far, without headers: of Ethernet (14 bytes), IPv4 (20) and TCP with a time stamp (32). The
/// kernel counts what it hands to the link, up to 64 KiB at once.
double payload_sent(const VirtualCluster& cluster, int host) {
  constexpr double headers = 66;
  return static_cast<double>(cluster.sent_bytes(host)) - headers * static_cast<double>(cluster.sent_packets(host));
}

/// Not mpirun, on whose command line the program is, too.
std::vector<pid_t> ranks_on(const VirtualCluster& cluster, int host) {
  std::vector<pid_t> found;
  for (const pid_t process : cluster.processes_of(host, training)) {
    if (content("/proc/" + std::to_string(process) + "/cmdline").rfind(training, 0) == 0) {
      found.push_back(process);
    }
  }
  return found;
}

bool all_ranks_end(const VirtualCluster& cluster, int host, std::chrono::milliseconds time) {
  const dtrain::Deadline deadline = dtrain::Deadline::after(time);
  while (!ranks_on(cluster, host).empty() && !deadline.passed())
    ::usleep(10000);
  return ranks_on(cluster, host).empty();
}

const std::vector<std::vector<int>> layouts{{2, 2}, {2, 1, 1}};

}  // namespace

TEST_CASE("training over MPI on virtual hosts gives the bits of the same grouping on one host, and nearly Flat's") {
  for (const std::vector<int>& workers : layouts) {
    CAPTURE(workers.size());
    const VirtualCluster cluster(static_cast<int>(workers.size()));
    if (const std::string reason = obstacle(cluster); !reason.empty()) return dtrain_test::skip(reason);
    const support::TemporaryDirectory folder;
    const std::string flat = folder.path + "/flat";
    digest_of(run(cluster, workers, {"flat", "4", "512", flat}));
    for (const std::string topology : {"flat", "ring", "tree", "hierarchical", "server"}) {
      CAPTURE(topology);
      const std::string file = folder.path + "/" + topology;
      const std::string apart = digest_of(run(cluster, workers, {topology, "4", "512", file}));
      CHECK(apart == digest_of(run_here(workers, topology + " 4 512")));
      CHECK(greatest_difference(content(flat), content(file)) <= 1e-5);
    }
  }
}

TEST_CASE(
    "what crosses the links between 2 hosts with 2 ranks is what the topologies' formulas say, within 5 percent") {
  const VirtualCluster cluster(2);
  if (const std::string reason = obstacle(cluster); !reason.empty()) return dtrain_test::skip(reason);
  const std::vector<int> nodes{0, 0, 1, 1};
  constexpr double megabytes = 8;
  constexpr double reduced = 4 * megabytes * 1048576;  // in all steps
  const std::vector<std::pair<std::string, double>> leaving_host_0{
      {"flat", support::hierarchical_bytes_leaving(reduced, 2)},  // halving-doubling: the longest parts stay on a host
      {"ring", support::bytes_leaving(support::RingTraffic{reduced, 4}, nodes, 0)},
      {"tree", support::bytes_leaving(support::TreeTraffic{reduced, 4}, nodes, 0)},
      {"hierarchical", support::hierarchical_bytes_leaving(reduced, 2)},
      {"server", support::bytes_leaving(support::ParameterServerTraffic{reduced, 4, 1}, nodes, 0)}};
  for (const auto& [topology, formula] : leaving_host_0) {
    CAPTURE(topology);
    // A wrapper gives every rank the values of rank 0 first: that, and starting, is measured without a step.
    const auto sent = [&, &name = topology](const char* steps) {
      const double before = payload_sent(cluster, 0);
      digest_of(run(cluster, {2, 2}, {name, steps, "8192"}));
      return payload_sent(cluster, 0) - before;
    };
    const double without = sent("0");
    const double measured = sent("4") - without;
    MESSAGE(topology << ": " << measured / formula << " of the formula's " << formula / 1048576 << " MiB");
    CHECK(measured / formula == doctest::Approx(1).epsilon(0.05));
  }
}

TEST_CASE("under mpirun, a cut link ends every rank elsewhere in time, and they name the lost host") {
  const VirtualCluster cluster(2);
  if (const std::string reason = obstacle(cluster); !reason.empty()) return dtrain_test::skip(reason);
  const std::unique_ptr<Program> job = start(cluster, {2, 2}, {"flat", "1000000", "64"});
  REQUIRE(job->wait_for("phase steady"));
  cluster.cut(1);
  CHECK(all_ranks_end(cluster, 0, liveness + std::chrono::seconds(5)));
  CHECK(job->wait_for(": ends because rank "));
  CHECK(job->wait_for(" on host host1"));
  job->signal(SIGKILL);  // mpirun itself still waits for what it started on the other host
}

TEST_CASE("under mpirun, a process that is killed on one host ends those of the others within two seconds") {
  const VirtualCluster cluster(2);
  if (const std::string reason = obstacle(cluster); !reason.empty()) return dtrain_test::skip(reason);
  const std::unique_ptr<Program> job = start(cluster, {2, 2}, {"flat", "1000000", "64"});
  REQUIRE(job->wait_for("phase steady"));
  const std::vector<pid_t> there = ranks_on(cluster, 1);
  REQUIRE(there.size() == 2);
  REQUIRE(::kill(there.back(), SIGKILL) == 0);
  CHECK(all_ranks_end(cluster, 0, two_seconds));
  job->close_input();
  const Result result = job->wait();
  support::check_failed(result, {" on host host1"});
}
