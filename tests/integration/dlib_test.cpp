// ctest: TIMEOUT 300 PROCESSORS 2
// ctest: LABELS no-asan no-tsan
// The example with dlib trains alike on any number of ranks.

#include "integration/prelude.hpp"

namespace {

const std::string program = DTRAIN_EXAMPLES_DIR "/lenet_dlib";

/// After a few steps: rounding of sums, which differs with the ranks, grows in later ones.
double loss_on(const std::string& ranks) {
  Program started(program, {"--nproc-per-node=" + ranks, "640"});
  started.close_input();
  const Result result = started.wait(support::soon(std::chrono::seconds(90)));
  INFO(result.error);
  REQUIRE(result.exit_code == 0);
  const std::string before = "training loss ";
  const std::size_t found = result.output.find(before);
  REQUIRE(found != std::string::npos);
  CHECK_CONTAINS(result.output, "after 10 steps on " + ranks + " rank(s)");
  return std::stod(result.output.substr(found + before.size()));
}

}  // namespace

TEST_CASE("LeNet by dlib's own layers and solver reaches the same loss on 1, 2 and 4 ranks") {
  if (!std::filesystem::exists(program)) {
    dtrain_test::skip("lenet_dlib was not built: it needs dlib (libdlib-dev) and zlib");
    return;
  }
  if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")) {
    dtrain_test::skip("the images are missing: install the package dataset-fashion-mnist");
    return;
  }
  const double alone = loss_on("1");
  CHECK(alone < 2);  // 2.3 is chance
  for (const char* ranks : {"2", "4"}) {
    CAPTURE(ranks);
    CHECK(std::abs(loss_on(ranks) - alone) < 1e-4 * alone);
  }
}
