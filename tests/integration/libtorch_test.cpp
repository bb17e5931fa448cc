// ctest: TIMEOUT 300 RUN_SERIAL ON
// ctest: LABELS no-asan no-tsan
// What the example with LibTorch promises: it trains as LibTorch alone does, whatever the ranks, and its TorchModel
// takes what autograd does.

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "support/program.hpp"
#include "support/skip.hpp"

namespace {

using support::Program;
using support::Result;

const std::string folder = DTRAIN_EXAMPLES_DIR "/";

bool can_run(const std::string& needed = "") {
  if (!std::filesystem::exists(folder + "fashion_mnist_libtorch")) {
    dtrain_test::skip("fashion_mnist_libtorch was not built: it needs LibTorch (libtorch-dev) and zlib");
    return false;
  }
  if (!needed.empty() && !std::filesystem::exists(needed)) {
    dtrain_test::skip("the images are missing: install the package dataset-fashion-mnist");
    return false;
  }
  return true;
}

Result run(const std::string& program, const std::vector<std::string>& arguments) {
  Program started(folder + program, arguments);
  started.close_input();
  return started.wait(support::soon(std::chrono::seconds(120)));
}

/// After how many images: enough for another gradient to be another loss.
double loss_after_6000_images(const std::vector<std::string>& arguments) {
  std::vector<std::string> all{"--epochs=1", "--images=6000"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const Result result = run("fashion_mnist_libtorch", all);
  INFO(result.error);
  REQUIRE(result.exit_code == 0);
  const std::string before = "training loss ";
  const std::size_t found = result.output.find(before);
  REQUIRE(found != std::string::npos);
  return std::stod(result.output.substr(found + before.size()));
}

/// What torch_model_probe does on each rank, in the order of its checks.
const std::vector<std::string> checks{
    "gradients that are kept",    "gradients that were set to none",
    "order of announcements",     "buffers",
    "unused parameters",          "passes under no_sync",
    "tied and frozen parameters", "element types and layouts",
    "memory that moved",          "the end of the wrapper",
};

}  // namespace

TEST_CASE("a training with LibTorch reaches the loss of LibTorch alone, on 1, 2 and 4 ranks") {
  if (!can_run("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")) return;
  const double plain = loss_after_6000_images({"--nproc-per-node=1", "--plain"});
  CHECK(plain < 2);  // 2.3 is chance
  for (const char* ranks : {"1", "2", "4"}) {
    CAPTURE(ranks);
    const double loss = loss_after_6000_images({std::string("--nproc-per-node=") + ranks});
    CHECK(std::abs(loss - plain) < 1e-4 * plain);
  }
}

TEST_CASE("a TorchModel takes what autograd does with parameters, gradients and buffers, on 1, 2 and 3 ranks") {
  if (!can_run()) return;
  for (const char* ranks : {"1", "2", "3"}) {
    CAPTURE(ranks);
    const Result result = run("torch_model_probe", {std::string("--nproc-per-node=") + ranks});
    CAPTURE(result.output);
    CAPTURE(result.error);
    CHECK(result.exit_code == 0);
    for (const std::string& check : checks) {
      CAPTURE(check);
      CHECK(result.output.find("[0] holds: " + check + "\n") != std::string::npos);
    }
  }
}

TEST_CASE("a parameter that takes no part in the loss is named") {
  if (!can_run()) return;
  const Result result = run("torch_model_probe", {"--nproc-per-node=1", "leave-out"});
  CAPTURE(result.error);
  CHECK(result.exit_code != 0);
  CHECK(result.error.find("these parameters got no gradient: parameter 2 '1.weight', parameter 3 '1.bias'") !=
        std::string::npos);
}

TEST_CASE("what a rank throws in its backward pass comes out of autograd on the others") {
  if (!can_run()) return;
  const Result result = run("torch_model_probe", {"--nproc-per-node=2", "throw"});
  CAPTURE(result.output);
  CAPTURE(result.error);
  CHECK(result.exit_code != 0);
  const std::size_t said = result.output.find("[0] autograd ended with: ");
  REQUIRE(said != std::string::npos);
  CHECK(result.output.find("the second rank gives up", said) != std::string::npos);
}
