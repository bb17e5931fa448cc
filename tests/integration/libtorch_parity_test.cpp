// ctest: TIMEOUT 300 RUN_SERIAL ON
// ctest: LABELS no-asan no-tsan
// dtrain::libtorch against PyTorch's DistributedDataParallel in Python: 50 steps of each case on two ranks.

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "support/program.hpp"
#include "support/skip.hpp"
#include "support/temporary_directory.hpp"

namespace {

using support::Program;
using support::Result;

Result run(const std::string& program, const std::vector<std::string>& arguments, Program::Variables variables = {}) {
  Program started(program, arguments, variables);
  started.close_input();
  return started.wait(support::soon(std::chrono::seconds(240)));
}

/// The number after `before`, up to its second dot: "1.13" of "LibTorch 1.13.0".
std::string version_in(const std::string& output, const std::string& before) {
  const std::size_t found = output.find(before);
  if (found == std::string::npos) return "";
  const std::size_t begin = found + before.size();
  return output.substr(begin, output.find('.', output.find('.', begin) + 1) - begin);
}

}  // namespace

TEST_CASE("training with dtrain::libtorch has the results of Python's DistributedDataParallel") {
  const std::string probe = DTRAIN_EXAMPLES_DIR "/parity_probe";
  if (!std::filesystem::exists(probe)) {
    return dtrain_test::skip("parity_probe was not built: it needs LibTorch (libtorch-dev) and zlib");
  }
  const char* const given = std::getenv("DTRAIN_PEER_PYTHON");
  const std::string python = given == nullptr ? "/usr/bin/python3" : given;
  const Result found = run(python, {"-c", "import torch, torch.distributed; print('PyTorch', torch.__version__)"});
  if (found.exit_code != 0) {
    return dtrain_test::skip(python + " has no torch; DTRAIN_PEER_PYTHON names one that has");
  }
  const support::TemporaryDirectory folder;
  const Result ours = run(probe, {"--nproc-per-node=2", folder.path});
  CAPTURE(ours.error);
  REQUIRE(ours.exit_code == 0);
  const std::string mine = version_in(ours.output, "LibTorch ");
  const std::string theirs = version_in(found.output, "PyTorch ");
  if (mine != theirs) {
    return dtrain_test::skip("the program has LibTorch " + mine + " and " + python + " PyTorch " + theirs +
                             "; DTRAIN_PEER_PYTHON names one of the same version");
  }
  const Result compared = run(python, {"-B", DTRAIN_TEST_SUPPORT_DIR "/../libtorch/parity_ddp.py", folder.path},
                              {{"OMP_NUM_THREADS", "1"}});
  std::printf("%s", compared.output.c_str());
  CAPTURE(compared.error);
  CHECK(compared.exit_code == 0);
}
