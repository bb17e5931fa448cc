// ctest: TIMEOUT 420 PROCESSORS 2
// ctest: LABELS long no-asan no-tsan
// dtrain::libtorch against PyTorch's DistributedDataParallel in Python, and sharded optimizers and PowerSGD against
// PyTorch's: 50 steps of each case on two ranks. Python reads a checkpoint of dtrain's.

#include "integration/prelude.hpp"

namespace {

Result run(const std::string& program, const std::vector<std::string>& arguments, Program::Variables variables = {}) {
  return support::run(program, arguments, variables, std::chrono::seconds(240));
}

/// The number after `before`, up to its second dot: "1.13" of "LibTorch 1.13.0".
std::string version_in(const std::string& output, const std::string& before) {
  const std::size_t found = output.find(before);
  if (found == std::string::npos) return "";
  const std::size_t begin = found + before.size();
  return output.substr(begin, output.find('.', output.find('.', begin) + 1) - begin);
}

Result version_of(const std::string& python) {
  return run(python, {"-c", "import torch, torch.distributed; print('PyTorch', torch.__version__)"});
}

std::vector<double> numbers_in(const std::string& line) {
  std::vector<double> numbers;
  std::istringstream words(line);
  for (std::string word; words >> word;)
    numbers.push_back(std::strtod(word.c_str(), nullptr));
  return numbers;
}

/// What follows `before`, up to the end of its line.
std::string rest_of_line(const std::string& output, const std::string& before) {
  const std::size_t found = output.find(before);
  if (found == std::string::npos) return "";
  const std::size_t begin = found + before.size();
  return output.substr(begin, output.find('\n', begin) - begin);
}

bool has_torch(const std::string& python) {
  return dtrain_test::needs(version_of(python).exit_code == 0,
                            python + " has no torch; DTRAIN_PEER_PYTHON names one that has");
}

}  // namespace

TEST_CASE("training with dtrain::libtorch has the results of Python's DistributedDataParallel") {
  const std::string parity_probe = DTRAIN_EXAMPLES_DIR "/parity_probe";
  if (!std::filesystem::exists(parity_probe)) {
    return dtrain_test::skip("parity_probe was not built: it needs LibTorch (libtorch-dev) and zlib");
  }
  const std::string python = support::peer_python();
  const Result found = version_of(python);
  if (!has_torch(python)) return;
  const support::TemporaryDirectory folder;
  const Result ours = run(parity_probe, {"--nproc-per-node=2", folder.path});
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

TEST_CASE("sharded optimizers and PowerSGD train as ZeroRedundancyOptimizer and powerSGD_hook") {
  const std::string program = DTRAIN_EXAMPLES_DIR "/optimizer_parity";
  const std::string python = support::peer_python();
  if (!std::filesystem::exists(program)) {
    return dtrain_test::skip(
        "optimizer_parity was not built: it lies with what needs LibTorch (libtorch-dev) and zlib");
  }
  if (!has_torch(python)) return;
  const support::TemporaryDirectory folder;
  const Result ours = run(program, {"--nproc-per-node=2", folder.path});
  CAPTURE(ours.error);
  REQUIRE(ours.exit_code == 0);
  const Result compared = run(python, {"-B", DTRAIN_TEST_SUPPORT_DIR "/../libtorch/optimizer_parity.py", folder.path},
                              {{"OMP_NUM_THREADS", "1"}});
  std::printf("%s", compared.output.c_str());
  CAPTURE(compared.error);
  CHECK(compared.exit_code == 0);
}

TEST_CASE("PyTorch goes on from a sharded checkpoint by the lines of the guide, and loads weights of each type") {
  const std::string python = support::peer_python();
  for (const std::string program : {"sharded_probe", "checkpoint_probe"}) {
    if (std::filesystem::exists(DTRAIN_EXAMPLES_DIR "/" + program)) continue;
    return dtrain_test::skip(program + " was not built: it needs LibTorch (libtorch-dev) and zlib");
  }
  const std::string modules = "import safetensors.torch, torch.distributed.checkpoint.state_dict";
  if (!dtrain_test::needs(run(python, {"-c", modules}).exit_code == 0,
                          python + " has no safetensors, or no torch of version 2.2 or newer; DTRAIN_PEER_PYTHON names "
                                   "one that has both")) {
    return;
  }
  const support::TemporaryDirectory folder;
  const auto check = [&](const std::string& program, const std::string& ranks, const std::string& what) {
    CAPTURE(program);
    CAPTURE(ranks);
    const std::string file = folder.path + "/" + what + ranks;
    REQUIRE(run(DTRAIN_EXAMPLES_DIR "/" + program, {"--nproc-per-node=" + ranks, file}).exit_code == 0);
    const Result restored = run(python, {"-B", DTRAIN_TEST_SUPPORT_DIR "/../libtorch/restored.py", what, file});
    std::printf("%s", restored.output.c_str());
    CAPTURE(restored.error);
    CHECK(restored.exit_code == 0);
  };
  check("sharded_probe", "1", "sharded");
  check("sharded_probe", "3", "sharded");
  check("checkpoint_probe", "2", "weights");
}

TEST_CASE("Python reads the tensors of a checkpoint") {
  const std::string checkpoint_probe = DTRAIN_EXAMPLES_DIR "/checkpoint_probe";
  const std::string python = support::peer_python();
  if (!std::filesystem::exists(checkpoint_probe)) {
    return dtrain_test::skip("checkpoint_probe was not built: it needs LibTorch (libtorch-dev) and zlib");
  }
  const support::TemporaryFile file;
  REQUIRE(run(checkpoint_probe, {"--nproc-per-node=2", file.path}).exit_code == 0);
  const Result tensors = run(python, {"-B", DTRAIN_TEST_SUPPORT_DIR "/safetensors_peer.py", "print", file.path});
  CAPTURE(tensors.error);
  CAPTURE(tensors.output);
  CHECK(tensors.exit_code == 0);
  const std::vector<double> weight =
      numbers_in(rest_of_line(run(checkpoint_probe, {"--nproc-per-node=1", file.path, "ranks"}).output, "[0] "));
  CHECK(weight.size() == 16);
  CHECK(numbers_in(rest_of_line(tensors.output, "convolution.weight F32 [4, 2, 1, 2] ")) == weight);
  CHECK(rest_of_line(tensors.output, "dtrain.sampler I64 [6] ") == "1 2 60 12 3 1");
  CHECK_CONTAINS(tensors.output, "dtrain.rng U8 [2, ");
}
