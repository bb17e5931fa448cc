// ctest: LABELS no-asan no-tsan
// OpenBLAS with POSIX threads, which starts its threads when it is loaded: the usual one of Debian and Ubuntu. It is
// preloaded, and so is loaded as a program's own library is. (A sanitizer's runtime would have to come before it.)

#include "integration/prelude.hpp"

namespace {

/// Debian's path; empty if it is not installed.
std::string openblas() {
  const std::string root = "/usr/lib";
  for (const auto& folder : std::filesystem::directory_iterator(root)) {
    const std::string path = folder.path().string() + "/openblas-pthread/libopenblas.so.0";
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path;
  }
  return {};
}

}  // namespace

TEST_CASE("programs with OpenBLAS's threads become launchers, and their signals reach the workers") {
  const std::string library = openblas();
  if (library.empty()) return dtrain_test::skip("OpenBLAS with threads (libopenblas0-pthread) is not installed");
  const Program::Variables variables{{"LD_PRELOAD", library}, {"OPENBLAS_NUM_THREADS", "3"}};
  for (const std::string ranks : {"1", "2"}) {
    const Result result =
        support::run(DTRAIN_EXAMPLES_DIR "/hello_all_reduce", {"--nproc-per-node=" + ranks}, variables);
    support::check_quiet(result);
    CHECK_CONTAINS(result.output, "rank 0 of " + ranks + ": sum ");
  }
  Program program(probe, {"--nproc-per-node=2", "*:join", "*:on-term:21", "*:stdout:up\n", "*:sleep:60000"}, variables);
  support::require_up(program, 2);
  CHECK_CONTAINS(content("/proc/" + std::to_string(program.process()) + "/maps"), "/libopenblas");
  program.signal(SIGTERM);
  support::check_ended(program.wait(), 21, {"SIGTERM was forwarded"});
}
