// The communicator contract over MPI. This program starts itself under mpirun, with a process for each rank.
// ctest: LABELS no-tsan
// What Open MPI itself never frees is no leak of dtrain's:
// ctest: ENVIRONMENT LSAN_OPTIONS=detect_leaks=0
// ctest: TIMEOUT 360

#include "integration/prelude.hpp"
#include "support/mpirun.hpp"

#if DTRAIN_WITH_MPI

#include "support/communicator_contract.hpp"
#include "support/mpi_rank.hpp"

using support::MpiRank;

TEST_SUITE_BEGIN("results" * doctest::skip());
COMMUNICATOR_CONTRACT(MpiRank)
CROSSED_CHANNELS_CONTRACT(MpiRank)
TEST_SUITE_END();

TEST_SUITE_BEGIN("failures" * doctest::skip());
COMMUNICATOR_FAILURE_CONTRACT(MpiRank)
HOST_STREAM_CONTRACT(MpiRank)
TEST_SUITE_END();

#endif

namespace {

constexpr int all_jobs = -1;

/// How many assertions doctest says that a program made.
int assertions(const std::string& said) {
  const std::string before = "assertions:";
  const std::size_t at = said.find(before);
  return at == std::string::npos ? 0 : std::stoi(said.substr(at + before.size()));
}

/// Runs the suite's jobs of so many ranks, or one of them, and checks what each rank says at its end.
/// @returns how many jobs of so many ranks the suite has
int run_suite(const std::string& suite, int ranks, int job) {
  CAPTURE(suite);
  CAPTURE(ranks);
  CAPTURE(job);
  const TemporaryDirectory folder;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string reports = folder.path + "/rank-";
  // One application for all ranks: with several (`:`), mpirun of Debian 13's Open MPI 5.0.7 ends by a segmentation
  // fault (issue 13303 of open-mpi/ompi). Each rank names its report by what Open MPI or MPICH tells it.
  const std::string command = R"(exec "$0" "$@" --out="$DTRAIN_TEST_REPORTS${OMPI_COMM_WORLD_RANK-$PMI_RANK}")";
  std::vector<std::string> arguments{"--oversubscribe", "-n", std::to_string(ranks), "/bin/sh", "-c", command};
  arguments.insert(arguments.end(), {program, "--no-skip", "--no-colors", "--test-suite=" + suite});
  // Once a rank has ended without MPI_Finalize, Open MPI's mpirun waits that many seconds before it kills the others.
  // All ranks have written their reports before one ends.
  const Program::Variables variables{{"DTRAIN_TEST_FOLDER", folder.path},
                                     {"DTRAIN_TEST_REPORTS", reports},
                                     {"DTRAIN_TEST_JOB", std::to_string(job)},
                                     {"OMPI_MCA_odls_base_sigkill_timeout", "0"}};
  const Result result = support::started(support::mpirun, std::move(arguments), variables);
  CAPTURE(result.error);
  int checked = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string said = content(reports + std::to_string(rank));
    CAPTURE(rank);
    CAPTURE(said);
    CHECK(contains(said, "Status: SUCCESS!"));
    checked += assertions(said);  // one rank of a failing job may have nothing to check
  }
  CHECK(checked > 0);
  if (job == all_jobs) {  // all ranks end MPI
    const bool ended_well = result.exit_code == 0 || support::is_false_report(result);
    CHECK(ended_well);
  }
  const std::string jobs = content(folder.path + "/jobs");
  REQUIRE_FALSE(jobs.empty());
  return std::stoi(jobs);
}

}  // namespace

TEST_CASE("one to five ranks over MPI keep the communicator contract") {
  SKIP_WITHOUT_MPI();
  for (const int ranks : {1, 2, 3, 4, 5})
    CHECK(run_suite("results", ranks, all_jobs) > 0);
}

TEST_CASE("operations over MPI fail as the communicator contract says") {
  SKIP_WITHOUT_MPI();
  for (const int ranks : {1, 2, 3, 5}) {
    const int jobs = run_suite("failures", ranks, 0);
    for (int job = 1; job < jobs; ++job)
      run_suite("failures", ranks, job);
  }
}
