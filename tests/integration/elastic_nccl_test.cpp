// Elastic jobs over NCCL: workers are killed in a step, or their devices break, and others take their places.
// ctest: LABELS no-tsan
// ctest: TIMEOUT 120

#include "integration/prelude.hpp"

namespace {

const std::string elastic_nccl_probe = DTRAIN_TEST_PROGRAMS_DIR "/elastic_nccl_probe";

/// The emulation has a device for each of the workers, a real machine may not.
Result job(int workers, std::vector<std::string> arguments, Program::Variables variables = {}) {
  variables.insert({"DTRAIN_EMULATED_DEVICES", std::to_string(workers)});
  arguments.insert(arguments.begin(), "--nproc-per-node=" + std::to_string(workers));
  arguments.push_back("workers=" + std::to_string(workers));
  return support::run(elastic_nccl_probe, arguments, variables, std::chrono::seconds(90));
}

/// Whether the job could be; says why where it could not.
bool could_run(const Result& result) {
  if (!dtrain_test::needs(!contains(result.output, "built without NCCL"),
                          "no CUDA or NCCL headers were found when the programs were built")) {
    return false;
  }
  for (const char* const few : {"both compute on device", "no CUDA device is visible", "at most one rank for each"}) {
    if (!contains(result.error, few)) continue;
    dtrain_test::skip("there is no device for each of the workers");
    return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a worker over NCCL that is killed in a step is replaced, with the sums and the device memory of before") {
  for (const char* const least : {"--min-ranks=1", "--min-ranks=2"}) {
    CAPTURE(least);
    const Result result = job(2, {least, "--max-restarts=2", "kills=2", "growth=1"});
    if (!could_run(result)) return;
    support::check_printed(result, {"elastic: 2 kills, 2 restarts, sums right, memory used "});
    CHECK_CONTAINS(result.error, "2 workers were lost in this job", "worker 1 was lost: killed by signal 9");
  }
}

TEST_CASE("a worker whose device breaks when another one is killed ends at once, and takes one restart") {
  const Result result = job(3, {"--min-ranks=1", "--max-restarts=2", "kills=1", "break"});
  if (!could_run(result)) return;
  if (!contains(result.error, "cudaErrorIllegalAddress"))
    return dtrain_test::skip("no device breaks without emulation");
  support::check_printed(result, {"elastic: 1 kills, 1 restarts, sums right"});
  CHECK_CONTAINS(result.error, "2 workers were lost in this job", "worker 1 was lost: killed by signal 9",
                 "worker 2 was lost: exit code 1: every call of CUDA fails on the device of local rank 2",
                 "only another process can use it again, so this one ends, to be replaced");
}

TEST_CASE("an elastic job refuses an NCCL before 2.27 at once, and says what it needs") {
  const Result result = job(2, {"--min-ranks=1", "--max-restarts=2", "kills=0"}, {{"DTRAIN_EMULATED_NCCL", "22605"}});
  if (!could_run(result)) return;
  if (result.exit_code == 0) return dtrain_test::skip("NCCL is real, and new enough");
  support::check_ended(result, 2,
                       {"an elastic job needs NCCL 2.27 or newer, and this process has NCCL 2.26.5",
                        "put a newer libnccl.so.2 first on the library path"});
}
