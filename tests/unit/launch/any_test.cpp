// What a process with launch::Any becomes, for the variables and arguments that it has; choose_start() has its table of
// its own.

#include <deque>

#include "dtrain/launch/any.hpp"
#include "dtrain/launch/per_process.hpp"
#include "support/captured_stderr.hpp"
#include "support/scoped_variable.hpp"
#include "unit/launch/prelude.hpp"

namespace {

using VariablesOfTest = std::map<std::string, std::string>;

const BackendFacts over_mpi{.name = "Mpi", .needs_process_per_rank = true};

struct Started {
  StartResult result;
  std::string logged;
};

/// Calls start(argc, argv) in an environment that has no other variables of launchers.
template <class Start>
Started started(const VariablesOfTest& variables, Words arguments, Start start) {
  std::deque<support::ScopedVariable> set;
  for (const char* const name : {"DTRAIN_RANK",
                                 "DTRAIN_WORLD_SIZE",
                                 "DTRAIN_LOCAL_RANK",
                                 "DTRAIN_LAUNCHER_PROCESS",
                                 "DTRAIN_LAUNCHER",
                                 "DTRAIN_MASTER_ADDR",
                                 "DTRAIN_MASTER_PORT",
                                 "DTRAIN_NODE_RANK",
                                 "DTRAIN_NODE_COUNT",
                                 "DTRAIN_JOB_ID",
                                 "RANK",
                                 "WORLD_SIZE",
                                 "LOCAL_RANK",
                                 "LOCAL_WORLD_SIZE",
                                 "MASTER_ADDR",
                                 "MASTER_PORT",
                                 "NODE_RANK",
                                 "NNODES",
                                 "AZUREML_NODE_COUNT",
                                 "PET_NNODES",
                                 "PET_NODE_RANK",
                                 "PMI_RANK",
                                 "PMI_SIZE",
                                 "OMPI_COMM_WORLD_RANK",
                                 "OMPI_COMM_WORLD_SIZE",
                                 "SLURM_PROCID",
                                 "SLURM_STEP_ID",
                                 "SLURM_JOB_ID"}) {
    const auto found = variables.find(name);
    set.emplace_back(name, found == variables.end() ? nullptr : found->second.c_str());
  }
  arguments.insert(arguments.begin(), "train");
  const ArgumentVector argv(std::move(arguments));
  support::CapturedStderr captured;
  StartResult result = start(argv.count(), argv.pointers());
  return {std::move(result), captured.text()};
}

Started any(const VariablesOfTest& variables, Words arguments = {}, const BackendFacts& backend = {},
            Takes takes = Takes::group) {
  return started(variables, std::move(arguments),
                 [&](int argc, char** argv) { return Any::start(argc, argv, backend, takes); });
}

void check_rank(const Started& started, int rank, int world_size, const std::string& launcher) {
  INFO(started.logged);
  REQUIRE(started.result.worker.has_value());
  CHECK(started.result.worker->identity.rank == rank);
  CHECK(started.result.worker->identity.world_size == world_size);
  CHECK(started.result.worker->identity.launcher == launcher);
}

void check_refused(const Started& started, std::initializer_list<const char*> parts) {
  CHECK_FALSE(started.result.worker.has_value());
  CHECK(started.result.exit_code == 2);
  for (const char* const part : parts)
    CHECK_CONTAINS(started.logged, part);
}

}  // namespace

TEST_CASE("a process that another launcher has started is its rank, with the program's arguments") {
  const Started rank = any({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}}, {"--master-addr=h"});
  check_rank(rank, 1, 2, "torch");
  REQUIRE(rank.result.worker->arguments().size() == 2);
  CHECK(std::string(rank.result.worker->arguments()[1]) == "--master-addr=h");
  CHECK_FALSE(rank.result.worker->hosts_store);
}

TEST_CASE("a launcher's variables that are incomplete end the process with what to set") {
  check_refused(any({{"PMI_RANK", "3"}}), {"PMI_RANK='3'", "PMI_SIZE is not set", "DTRAIN_LAUNCHER=none"});
}

TEST_CASE("--in-process makes the process rank 0 of 1, whatever its variables are") {
  check_rank(any({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}}, {"--in-process"}), 0, 1, "single");
  check_rank(any({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, {"--in-process"}, over_mpi), 0, 1,
             "single");
}

TEST_CASE("a range of ranks makes the process a worker of an elastic job, if the body takes an Elastic") {
  const VariablesOfTest range{{"DTRAIN_WORLD_SIZE", "2:4"}, {"MASTER_ADDR", "h"}, {"DTRAIN_RANK", "1"}};
  const Started elastic = any(range, {}, {}, Takes::elastic);
  check_rank(elastic, 1, 4, "dtrain");
  CHECK(elastic.result.worker->min_ranks == 2);
  check_refused(any(range), {"DTRAIN_WORLD_SIZE='2:4' is a range", "dtrain::Elastic"});

  const Started other =
      started(range, {}, [](int argc, char** argv) { return PerProcess::start(argc, argv, Takes::elastic); });
  check_rank(other, 1, 4, "dtrain");
  CHECK(other.result.worker->min_ranks == 2);
}

TEST_CASE("a process that a worker of another job has started is no rank of that job") {
  VariablesOfTest outer{{"DTRAIN_RANK", "3"}, {"DTRAIN_WORLD_SIZE", "4"},  {"RANK", "3"},
                        {"WORLD_SIZE", "4"},  {"DTRAIN_MASTER_ADDR", "h"}, {"DTRAIN_LAUNCHER_PROCESS", "1"}};
  check_rank(any(outer, {}, over_mpi), 0, 1, "single");
  outer.insert({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_PORT", "1"}, {"DTRAIN_MASTER_PORT", "1"}});
  check_refused(any(outer), {"MASTER_ADDR is not set", "PMI_RANK='1'"});
  outer.insert({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
  check_rank(any(outer), 0, 1, "openmpi");
}

TEST_CASE("with a backend that takes its ranks from mpirun, launch::Any starts none, and says what asks for them") {
  check_refused(
      any({}, {"--epochs=3", "--nproc-per-node=4"}, over_mpi),
      {"backend::Mpi takes its ranks from mpirun or srun: mpirun -n 4 ./train; leave --nproc-per-node=4 out"});
  check_refused(any({{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}}, {}, over_mpi),
                {"leave PET_NNODES='2', PET_NODE_RANK='1' out"});
  check_refused(any({{"DTRAIN_LAUNCHER", "pet"}}, {}, over_mpi), {"leave DTRAIN_LAUNCHER='pet' out"});
}

TEST_CASE("with a backend that takes its ranks from mpirun, a process that nothing has started is rank 0 of 1") {
  const Started alone = any({}, {"--epochs=3"}, over_mpi);
  check_rank(alone, 0, 1, "single");
  CHECK(alone.result.worker->hosts_store);
  CHECK(alone.logged.empty());

  const Started node = any({{"NODE_RANK", "1"}, {"NNODES", "2"}}, {}, over_mpi);
  check_rank(node, 0, 1, "single");
  CHECK_CONTAINS(node.logged,
                 "NODE_RANK='1', NNODES='2' describe a node, and backend::Mpi takes its ranks from mpirun");
}
