// Two jobs with one port at the same time, as each launcher starts them: no collective completes across them, and no
// rank hangs. DTRAIN_TEST_ROUNDS in the environment: how many rounds with random delays each launcher has.
// ctest: TIMEOUT 240

#include "integration/prelude.hpp"

using support::find_program;
using Variables = Program::Variables;

namespace {

const std::string rank_program = DTRAIN_TEST_PROGRAMS_DIR "/two_jobs";
constexpr std::array<int, 2> job_numbers{1, 1000};  // no two ranks of different jobs add up to 2 or 2000

std::string number(int value) {
  return std::to_string(value);
}

int rounds(int usual) {
  const char* const given = std::getenv("DTRAIN_TEST_ROUNDS");
  return given == nullptr ? usual : std::max(1, std::atoi(given));
}

/// How a launcher starts one of two jobs of two ranks each.
struct Launcher {
  std::string name;
  /// Of all ranks of a job, 0 or 1; what differs between the ranks is written with $r.
  std::function<Variables(int job)> variables;
  bool kills = true;     ///< the other ranks, once one has failed
  bool wrapped = false;  ///< each rank is the child of a script of its own, which ends it when it is ended itself
};

/// A process that starts the ranks of a job, as a launcher's daemon on a node does: a shell, which sees none of a
/// rank's variables itself.
std::unique_ptr<Program> start(const Launcher& launcher, int job, const Variables& common,
                               const std::array<int, 2>& delays) {
  std::string script = "start() { r=$1; ";
  for (const auto& [variable, value] : launcher.variables(job))
    script += variable + "=\"" + value + "\" ";
  script += launcher.wrapped ? "exec bash -c 'trap \"kill \\$!\" TERM; \"$0\" \"$@\" & wait $!' " : "exec ";
  script += "\"" + rank_program + "\" " + number(job_numbers[static_cast<std::size_t>(job)]) + " $2; }; ";
  script += "start 0 " + number(delays[0]) + " & a=$!; start 1 " + number(delays[1]) + " & b=$!; ";
  script += launcher.kills ? "wait -n || kill $a $b 2> /dev/null; " : "";
  script += "worst=0; wait $a || worst=1; wait $b || worst=1; exit $worst";
  return std::make_unique<Program>("/bin/bash", std::vector<std::string>{"-c", script}, common);
}

/// What both jobs of a round came to.
struct Round {
  std::array<Result, 2> results;
  int mixed = 0;     ///< sums that have another job's number in them
  int complete = 0;  ///< jobs of which both ranks printed the right sum
};

Round outcome(std::array<Result, 2> results) {
  Round round;
  round.results = std::move(results);
  for (std::size_t job = 0; job < 2; ++job) {
    const std::string number = std::to_string(job_numbers[job]);
    const std::string right = "job " + number + " sum " + std::to_string(2 * job_numbers[job]) + " of 2";
    int sums = 0;
    std::istringstream lines(round.results[job].output);
    for (std::string line; std::getline(lines, line);) {
      sums += line == right ? 1 : 0;
      round.mixed += line.starts_with("job ") && line != right ? 1 : 0;
    }
    round.complete += sums == 2 ? 1 : 0;
  }
  return round;
}

/// Both at once, each rank after a random delay.
Round run_round(const Launcher& launcher, const Variables& common, std::mt19937& random) {
  std::uniform_int_distribution<int> delay(0, 40);
  std::array<std::unique_ptr<Program>, 2> jobs;
  for (int job = 0; job < 2; ++job)
    jobs[static_cast<std::size_t>(job)] = start(launcher, job, common, {delay(random), delay(random)});
  const dtrain::Deadline deadline = support::soon(std::chrono::seconds(60));
  std::array<Result, 2> results{jobs[0]->wait(deadline), jobs[1]->wait(deadline)};
  return outcome(std::move(results));
}

Variables ranked(const std::string& rank, const std::string& size, Variables more = {}) {
  more.insert({{rank, "$r"}, {size, "2"}});
  return more;
}

/// A port for both, unless the launcher's formula gives both the same.
Variables meeting(std::string port) {
  return {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::move(port)}, {"DTRAIN_TIMEOUT_SECONDS", "15"}};
}

const std::vector<Launcher>& launchers() {
  static const std::vector<Launcher> all{
      {"hydra",
       [](int) {
         return ranked("PMI_RANK", "PMI_SIZE", {{"MPI_LOCALRANKID", "$r"}, {"MPI_LOCALNRANKS", "2"}});
       }},
      {"hydra, each rank in a script",
       [](int) {
         return ranked("PMI_RANK", "PMI_SIZE", {{"MPI_LOCALRANKID", "$r"}, {"MPI_LOCALNRANKS", "2"}});
       },
       true, true},
      {"Open MPI 5",
       [](int job) {
         return ranked(
             "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
             {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"PMIX_NAMESPACE", "prterun-vm-" + number(7 + job) + "@1"}});
       }},
      {"Open MPI 4",
       [](int job) {
         return ranked("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                       {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"OMPI_MCA_orte_hnp_uri", number(65536 * (5 + job)) + ".0;tcp://192.0.2.2:54609"}});
       }},
      {"Slurm",
       [](int job) {
         return ranked("SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
                       {{"SLURM_STEP_NUM_NODES", "1"},
                        {"SLURM_LOCALID", "$r"},
                        {"SLURM_NODEID", "0"},
                        {"SLURM_JOB_ID", job == 0 ? "5" : "262"},
                        {"SLURM_STEP_ID", job == 0 ? "1" : "0"}});
       }},
      {"Flux",
       [](int job) {
         return ranked("FLUX_TASK_RANK", "FLUX_JOB_SIZE",
                       {{"FLUX_JOB_NNODES", "1"}, {"FLUX_JOB_ID", "f" + number(100 + job)}});
       }},
      {"LSF",
       [](int) {
         return ranked("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
                       {{"JSM_NAMESPACE_LOCAL_SIZE", "2"}, {"LSB_JOBID", "77"}, {"PMIX_NAMESPACE", "jsm-$PPID-$$"}});
       }},
      {"MVAPICH",
       [](int) {
         return ranked("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", {{"MV2_COMM_WORLD_LOCAL_SIZE", "2"}});
       }},
      {"Horovod",
       [](int job) {
         return ranked("HOROVOD_RANK", "HOROVOD_SIZE",
                       {{"HOROVOD_LOCAL_SIZE", "2"},
                        {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "192.0.2.1"},
                        {"HOROVOD_GLOO_RENDEZVOUS_PORT", number(4000 + job)}});
       }},
      {"by hand, with names",
       [](int job) {
         return ranked("RANK", "WORLD_SIZE", {{"DTRAIN_JOB_ID", job == 0 ? "monday" : "tuesday"}});
       },
       false},
  };
  return all;
}

}  // namespace

TEST_CASE("two jobs of one launcher with one port: one trains, the other is refused, and none with the other's ranks") {
  std::mt19937 random(20240611);
  int refusals = 0;
  for (const Launcher& launcher : launchers()) {
    CAPTURE(launcher.name);
    for (int round = 0; round < rounds(2); ++round) {
      Variables common = meeting(number(support::free_port()));
      if (!launcher.kills) {
        common["DTRAIN_TIMEOUT_SECONDS"] = "4";  // a rank whose job is refused may look for it so long
      }
      const Round seen = run_round(launcher, common, random);
      INFO(seen.results[0].output, seen.results[0].error);
      INFO(seen.results[1].output, seen.results[1].error);
      CHECK(seen.mixed == 0);
      CHECK(seen.complete >= 1);  // where one has ended before the other begins, both
      for (const Result& result : seen.results) {
        CHECK(result.exit_code >= 0);
        CHECK(result.time < std::chrono::seconds(45));
        refusals += result.error.find(
                        "give each job a port (MASTER_PORT), a DTRAIN_JOB_ID or a DTRAIN_SECRET of its "
                        "own") != std::string::npos;
      }
    }
  }
  CHECK(refusals > 0);  // of many rounds, as not every one has a rank that comes to the other's store
}

TEST_CASE("two torchruns with one port and no names: both train, each at a port of its own") {
  const Launcher torchrun{"torchrun", [](int) {
                            return ranked("RANK", "WORLD_SIZE",
                                          {{"LOCAL_RANK", "$r"},
                                           {"LOCAL_WORLD_SIZE", "2"},
                                           {"GROUP_RANK", "0"},
                                           {"GROUP_WORLD_SIZE", "1"},
                                           {"TORCHELASTIC_RUN_ID", "none"}});
                          }};
  std::mt19937 random(7);
  for (int round = 0; round < rounds(2); ++round) {
    const Round seen = run_round(torchrun, meeting(number(support::free_port())), random);
    INFO(seen.results[0].output, seen.results[0].error);
    INFO(seen.results[1].output, seen.results[1].error);
    CHECK(seen.mixed == 0);
    CHECK(seen.complete == 2);
  }
}

TEST_CASE(
    "two jobs by hand with one port: where ranks mix, a warning names both parents, and nobody is alone in silence") {
  const Launcher by_hand{"by hand", [](int) { return ranked("RANK", "WORLD_SIZE"); }, false};
  std::mt19937 random(11);
  for (int round = 0; round < rounds(3); ++round) {
    Variables common = meeting(number(support::free_port()));
    common["DTRAIN_TIMEOUT_SECONDS"] = "3";
    const Round seen = run_round(by_hand, common, random);
    const std::string said = seen.results[0].error + seen.results[1].error;
    INFO(seen.results[0].output, seen.results[1].output, said);
    CHECK((seen.mixed == 0 || (said.find(" was started by process ") != std::string::npos &&
                               said.find("where they are of two jobs, give each job a port") != std::string::npos)));
    for (const Result& result : seen.results) {
      CHECK(result.exit_code >= 0);
      CHECK(result.time < std::chrono::seconds(30));
      // A job that is not whole says so: by its exit code, and on stderr.
      const bool whole = std::count(result.output.begin(), result.output.end(), '\n') == 2;
      CHECK(whole == (result.exit_code == 0));
      CHECK((whole || result.error.find("dtrain: ") != std::string::npos));
    }
  }
}

TEST_CASE("two jobs of a real mpiexec with one port never add up to each other's sums") {
  std::mt19937 random(3);
  std::uniform_int_distribution<int> delay(0, 40);
  int tried = 0;
  for (const std::string name : {"mpirun.openmpi", "mpiexec.hydra"}) {
    const std::string mpiexec = find_program(name);
    if (mpiexec.empty()) continue;
    ++tried;
    CAPTURE(mpiexec);
    for (int round = 0; round < rounds(2); ++round) {
      Variables common = meeting(number(support::free_port()));
      common.insert({{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
      std::array<std::unique_ptr<Program>, 2> jobs;
      for (std::size_t job = 0; job < 2; ++job) {
        std::vector<std::string> arguments{"-n", "2", rank_program, number(job_numbers[job]), number(delay(random))};
        if (name == "mpirun.openmpi") {
          arguments.insert(arguments.begin(), "--oversubscribe");
        }
        jobs[job] = std::make_unique<Program>(mpiexec, arguments, common);  // input: see real_launchers_test
      }
      const dtrain::Deadline deadline = support::soon(std::chrono::seconds(60));
      std::array<Result, 2> results{jobs[0]->wait(deadline), jobs[1]->wait(deadline)};
      const Round seen = outcome(std::move(results));
      INFO(seen.results[0].output, seen.results[0].error);
      INFO(seen.results[1].output, seen.results[1].error);
      CHECK(seen.mixed == 0);
      CHECK(seen.complete >= 1);
      CHECK(seen.results[0].exit_code >= 0);
      CHECK(seen.results[1].exit_code >= 0);
    }
  }
  if (tried == 0) {
    dtrain_test::skip("neither Open MPI's mpirun nor MPICH's mpiexec is installed");
  }
}
