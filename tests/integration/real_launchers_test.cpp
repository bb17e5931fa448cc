// Programs started by the launchers that people have: whoami reads each one's variables, hello_all_reduce adds up.
// ctest: TIMEOUT 180

#include "dtrain/identity/formats/json.hpp"
#include "integration/prelude.hpp"
#include "support/slurm_on_this_machine.hpp"

using dtrain::identity::Json;
using support::find_program;

namespace {

const std::string whoami = DTRAIN_EXAMPLES_DIR "/whoami";
const std::string hello = DTRAIN_EXAMPLES_DIR "/hello_all_reduce";

Result started(const std::string& launcher, std::vector<std::string> arguments, Program::Variables variables = {}) {
  variables.insert({{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
  Program program(launcher, std::move(arguments), variables);  // at the end of its input MPICH's may die of SIGPIPE
  return program.wait(support::soon(std::chrono::seconds(60)));
}

/// What whoami printed, one for each rank; launchers may put a prefix before a line.
std::vector<Json> identities(const std::string& output) {
  std::vector<Json> found;
  std::size_t begin = 0;
  while ((begin = output.find('{', begin)) != std::string::npos) {
    const std::size_t end = std::min(output.find('\n', begin), output.size());
    std::optional<Json> line = dtrain::identity::parse_json(output.substr(begin, end - begin));
    REQUIRE_MESSAGE(line.has_value(), output);
    found.push_back(std::move(*line));
    begin = end;
  }
  return found;
}

std::string field(const Json& who, const char* name) {
  const Json* const value = who.find(name);
  return value == nullptr ? "missing" : value->text;
}

/// Every rank of `ranks` once, all on one node, all with the same master.
void check_whoami(const Result& result, int ranks, const std::string& launcher) {
  CAPTURE(launcher);
  CAPTURE(result.output);
  CAPTURE(result.error);
  CHECK(result.exit_code == 0);
  const std::string size = std::to_string(ranks);
  std::set<std::string> seen;
  std::set<std::string> masters;
  for (const Json& who : identities(result.output)) {
    CHECK(field(who, "launcher") == launcher);
    CHECK(field(who, "world_size") == size);
    CHECK(field(who, "local_rank") == field(who, "rank"));
    CHECK(field(who, "local_world_size") == size);
    CHECK(field(who, "node_rank") == "0");
    CHECK(field(who, "node_count") == "1");
    CHECK(seen.insert(field(who, "rank")).second);
    masters.insert(field(who, "master_addr") + ":" + field(who, "master_port"));
  }
  CHECK(seen.size() == static_cast<std::size_t>(ranks));
  CHECK(seen.count("0") == 1);
  CHECK(seen.count(std::to_string(ranks - 1)) == 1);
  CHECK(masters.size() == 1);
}

void check_hello(const Result& result, int ranks) {
  CAPTURE(result.output);
  CAPTURE(result.error);
  CHECK(result.exit_code == 0);
  CHECK(support::count_of(result.output, "sum ") == static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string line = "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + ": sum " +
                             std::to_string(ranks * (ranks - 1) / 2) + "\n";
    CHECK_CONTAINS(result.output, line);
  }
}

/// Open MPI's mpirun, whatever else is called so; empty where there is none.
std::string open_mpi() {
  for (const char* name : {"mpirun.openmpi", "mpirun"}) {
    const std::string path = find_program(name);
    if (!path.empty() && started(path, {"--version"}).output.find("Open MPI") != std::string::npos) return path;
  }
  return "";
}

std::string mpich() {
  const std::string path = find_program("mpiexec.hydra");
  return path.empty() ? find_program("mpiexec.mpich") : path;
}

}  // namespace

TEST_CASE("plain processes with RANK and WORLD_SIZE are a job") {
  constexpr int ranks = 3;
  Program::Variables variables{
      {"WORLD_SIZE", "3"}, {"LOCAL_WORLD_SIZE", "3"}, {"MASTER_PORT", std::to_string(support::free_port())}};
  std::vector<std::unique_ptr<Program>> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
    processes.push_back(std::make_unique<Program>(hello, std::vector<std::string>{}, variables));
  }
  Result all;
  all.exit_code = 0;
  for (const auto& process : processes) {
    const Result one = process->wait();
    all.exit_code = std::max(all.exit_code, one.exit_code);
    all.output += one.output;
    all.error += one.error;
  }
  check_hello(all, ranks);
  CHECK_CONTAINS(all.error,
                 "identity from RANK and WORLD_SIZE: rank 0 of 3, local rank 0 of 3, node 0 of 1, store at "
                 "127.0.0.1:");
  CHECK(all.error.find("torch") == std::string::npos);
}

TEST_CASE("one program with launch::Any runs by itself, with ranks of its own, under mpirun and under torchrun") {
  check_hello(support::run(hello, {}), 1);
  check_hello(support::run(hello, {"--nproc-per-node=2"}), 2);
  check_hello(support::run(hello, {}, {{"NODE_RANK", "0"}, {"NNODES", "1"}}), 1);
  check_hello(support::run(hello, {},
                           {{"PET_NODE_RANK", "0"},
                            {"PET_NNODES", "1"},
                            {"PET_NPROC_PER_NODE", "3"},
                            {"RANK", "0"},
                            {"WORLD_SIZE", "1"}}),
              3);
  // A worker of another job has started it.
  check_hello(support::run(hello, {},
                           {{"DTRAIN_LAUNCHER_PROCESS", "1"},
                            {"DTRAIN_RANK", "1"},
                            {"DTRAIN_WORLD_SIZE", "2"},
                            {"RANK", "1"},
                            {"WORLD_SIZE", "2"}}),
              1);
  if (const std::string mpirun = open_mpi(); !mpirun.empty()) {
    check_hello(started(mpirun, {"--oversubscribe", "-n", "2", hello}), 2);
  }
  Program::Variables torchrun{{"WORLD_SIZE", "2"},
                              {"LOCAL_WORLD_SIZE", "2"},
                              {"GROUP_RANK", "0"},
                              {"GROUP_WORLD_SIZE", "1"},
                              {"TORCHELASTIC_RUN_ID", "none"},
                              {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", std::to_string(support::free_port())}};
  Result both;
  both.exit_code = 0;
  std::vector<std::unique_ptr<Program>> processes;
  for (const char* const rank : {"0", "1"}) {
    torchrun["RANK"] = torchrun["LOCAL_RANK"] = rank;
    processes.push_back(std::make_unique<Program>(hello, std::vector<std::string>{}, torchrun));
  }
  for (const auto& process : processes) {
    const Result one = process->wait();
    both.exit_code = std::max(both.exit_code, one.exit_code);
    both.output += one.output;
    both.error += one.error;
  }
  check_hello(both, 2);
}

TEST_CASE("Open MPI's mpirun starts a program once for each rank, or its launcher once for each node") {
  const std::string mpirun = open_mpi();
  if (mpirun.empty()) return dtrain_test::skip("Open MPI's mpirun is not installed");
  for (const int ranks : {1, 2, 4}) {
    const std::vector<std::string> start{"--oversubscribe", "-n", std::to_string(ranks)};
    std::vector<std::string> arguments = start;
    arguments.push_back(whoami);
    check_whoami(started(mpirun, arguments), ranks, "openmpi");
    arguments.back() = hello;
    check_hello(started(mpirun, arguments), ranks);
  }
  check_hello(started(mpirun, {"-n", "1", hello, "--nproc-per-node=2"}), 2);
  const Result many = started(mpirun, {"--oversubscribe", "-n", "2", hello, "--nproc-per-node=2"});
  support::check_ended(many, 2, {"mpirun -npernode 1", "leave --nproc-per-node out and each process is a rank"});
}

TEST_CASE("MPICH's mpiexec starts a program once for each rank") {
  const std::string mpiexec = mpich();
  if (mpiexec.empty()) return dtrain_test::skip("MPICH's mpiexec is not installed");
  for (const int ranks : {1, 2, 4}) {
    const Program::Variables port{{"MASTER_PORT", std::to_string(support::free_port())}};
    check_whoami(started(mpiexec, {"-n", std::to_string(ranks), whoami}, port), ranks, "pmi");
    check_hello(started(mpiexec, {"-n", std::to_string(ranks), hello}, port), ranks);
  }
}

TEST_CASE("torchrun starts a program that is not Python") {
  const std::string python = support::peer_python();
  if (started(python, {"-c", "import torch.distributed.run"}).exit_code != 0) {
    return dtrain_test::skip(python + " has no torch; DTRAIN_PEER_PYTHON names one that has");
  }
  const support::TemporaryDirectory logs;
  // Redirected and shown at once: with the defaults torch 1.13 fails on Python 3.11.
  const std::vector<std::string> start{"-m",           "torch.distributed.run",
                                       "--no_python",  "--nproc_per_node=2",
                                       "--redirects",  "1",
                                       "--tee",        "1",
                                       "--log_dir",    logs.path,
                                       "--master_port"};
  for (const std::string& program : {whoami, hello}) {
    std::vector<std::string> arguments = start;
    arguments.push_back(std::to_string(support::free_port()));
    arguments.push_back(program);
    const Result result = started(python, arguments);
    program == whoami ? check_whoami(result, 2, "torch") : check_hello(result, 2);
  }
}

TEST_CASE("Slurm's srun starts a program once for each task, or its launcher once for each node") {
  const support::SlurmOnThisMachine slurm;
  if (!slurm.problem.empty()) return dtrain_test::skip(slurm.problem);
  const std::string srun = find_program("srun");
  for (const char* ranks : {"1", "2", "4"}) {
    const int count = std::atoi(ranks);
    check_whoami(started(srun, {"--overcommit", "-n", ranks, whoami}, slurm.variables()), count, "slurm");
    check_hello(started(srun, {"--overcommit", "-n", ranks, hello}, slurm.variables()), count);
  }
  check_hello(started(srun, {"-n", "1", hello, "--nproc-per-node=2"}, slurm.variables()), 2);
  const Result many = started(srun, {"--overcommit", "-n", "2", whoami, "--node"}, slurm.variables());
  CHECK(many.exit_code == 2);
  CHECK_CONTAINS(many.output, "many-launchers");
}
