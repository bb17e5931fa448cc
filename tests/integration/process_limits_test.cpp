// ctest: TIMEOUT 120
// Jobs that meet a limit (ulimit) or a bound: the sentence names it.

#include "integration/prelude.hpp"

namespace {

const std::string limits_probe = DTRAIN_TEST_PROGRAMS_DIR "/limits_probe";

/// The probe under `ulimit LIMIT`.
Result run_limited(const std::string& limit, const std::string& arguments) {
  return support::run("/bin/bash", {"-c", "ulimit " + limit + " && exec '" + limits_probe + "' " + arguments});
}

}  // namespace

TEST_CASE("a rank that runs into ulimit -v says so, and so does every other rank's cause") {
  if (support::is_sanitized) return dtrain_test::skip("a sanitizer needs more address space than any limit leaves");
  const Result result = run_limited("-v 8000000", "--nproc-per-node=2 memory");
  CHECK(result.exit_code == 1);
  const std::string sentence =
      "memory could not be had: std::bad_alloc; the address space of this process is limited to 8192000000 bytes "
      "(ulimit "
      "-v)";
  CHECK_CONTAINS(result.error, "[0] dtrain: rank 0: " + sentence + "\n",
                 "[1] dtrain: rank 1: ends because rank 0 on host ", " failed: " + sentence + "\n");
}

TEST_CASE("shared memory beyond ulimit -f is an error that names the limit, and no death by a signal") {
  const Result result = run_limited("-f 64", "--nproc-per-node=2");
  support::check_ended(result, 1,
                       {"sizing a shared memory of ",
                        ": File too large; files that this process writes are limited to 65536 bytes (ulimit -f)"});
  CHECK(!contains(result.error, "killed by signal"));
}

TEST_CASE("a rank that SIGXFSZ ends is said to have met ulimit -f") {
  const Result result = support::run(limits_probe, {"--nproc-per-node=2", "signal"});
  support::check_ended(result, 128 + SIGXFSZ,
                       {"failed first: killed by signal 25 (SIGXFSZ: the limit of file sizes, ulimit -f)"});
}

TEST_CASE("a log that has come to ulimit -f ends no job") {
  const support::TemporaryDirectory folder;
  const Result result = run_limited("-f 4096", "--nproc-per-node=2 --log-dir=" + folder.path + "/logs lines");
  support::check_printed(result, {"[0] rank 0 is well\n", "[1] rank 1 is well\n"});
  std::vector<std::uintmax_t> sizes;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path)) {
    if (entry.is_regular_file() && entry.file_size() != 0) {
      sizes.push_back(entry.file_size());
    }
  }
  CHECK(sizes == std::vector<std::uintmax_t>(2, std::uintmax_t{4096} * 1024));
}

TEST_CASE("a soft limit of open files that is too low for the ranks is raised where the hard one allows it") {
  const Result result = run_limited("-Sn 24", "--nproc-per-node=40");
  support::check_printed(result, {"[39] rank 39 is well\n"});
}

TEST_CASE("more ranks than shared memory joins are refused once, before any starts, and told what joins them") {
  const Result result = support::run(limits_probe, {"--nproc-per-node=300"});
  CHECK(result.exit_code == 2);
  CHECK(result.output == "");
  CHECK(result.error ==
        "dtrain: backend::SharedMemory joins at most 256 ranks, not 300; use backend::Gloo, or start fewer workers "
        "(--nproc-per-node)\n");
}
