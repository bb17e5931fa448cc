// ctest: TIMEOUT 300 PROCESSORS 2
// ctest: LABELS long no-asan no-tsan
// The example with dlib trains alike on any number of ranks.

#include "integration/prelude.hpp"

namespace {

const std::string program = DTRAIN_EXAMPLES_DIR "/lenet_dlib";

/// After a few steps: rounding of sums, which differs with the ranks, grows in later ones.
double loss_on(const std::string& ranks) {
  const Result result = support::run(program, {"--nproc-per-node=" + ranks, "640"}, {}, std::chrono::seconds(90));
  REQUIRE_MESSAGE(result.exit_code == 0, result.error);
  const std::string before = "training loss ";
  const std::size_t found = result.output.find(before);
  REQUIRE(found != std::string::npos);
  CHECK_CONTAINS(result.output, "after 10 steps on " + ranks + " rank(s)");
  return std::stod(result.output.substr(found + before.size()));
}

/// An uncompressed IDX file, whose every element is `value`. zlib reads it as it is.
void write_idx(const std::string& path, const std::vector<std::uint8_t>& extents, std::uint8_t value) {
  std::string bytes{'\0', '\0', '\x08', static_cast<char>(extents.size())};
  std::size_t elements = 1;
  for (const std::uint8_t extent : extents) {
    bytes += std::string{'\0', '\0', '\0', static_cast<char>(extent)};
    elements *= extent;
  }
  std::ofstream(path, std::ios::binary) << bytes << std::string(elements, static_cast<char>(value));
}

/// What a run that must fail says.
std::string error_of(const std::vector<std::string>& arguments, int exit_code) {
  const Result result = support::run(program, arguments, {}, std::chrono::seconds(90));
  CHECK(result.exit_code == exit_code);
  return result.error;
}

}  // namespace

TEST_CASE("LeNet by dlib's own layers and solver reaches the same loss on 1, 2 and 4 ranks") {
  if (!std::filesystem::exists(program)) {
    return dtrain_test::skip("lenet_dlib was not built: it needs dlib (libdlib-dev) and zlib");
  }
  if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")) {
    return dtrain_test::skip("the images are missing: install the package dataset-fashion-mnist");
  }
  const double alone = loss_on("1");
  CHECK(alone < 2);  // 2.3 is chance
  for (const char* ranks : {"2", "4"}) {
    CAPTURE(ranks);
    CHECK(std::abs(loss_on(ranks) - alone) < 1e-4 * alone);
  }
}

TEST_CASE("arguments and data sets that cannot be used are refused in a sentence") {
  if (!std::filesystem::exists(program)) {
    return dtrain_test::skip("lenet_dlib was not built: it needs dlib (libdlib-dev) and zlib");
  }
  for (const char* count : {"64x", "-64", "", "63", "99999999999999999999"}) {
    CAPTURE(count);
    CHECK_CONTAINS(error_of({count}, 2), "the first argument is '" + std::string(count) +
                                             "'; give the number of images to train on, at least 64");
  }
  const support::TemporaryDirectory folder;
  const std::string images = folder.path + "/train-images-idx3-ubyte.gz";
  const std::string labels = folder.path + "/train-labels-idx1-ubyte.gz";
  const auto refusal = [&] { return error_of({"64", folder.path}, 1); };
  write_idx(images, {65, 28, 28}, 7);
  write_idx(labels, {64}, 9);
  CHECK_CONTAINS(refusal(), "cannot be used: it has 65 images and 64 labels; name the folder of Fashion-MNIST");
  write_idx(images, {64, 28, 27}, 7);
  CHECK_CONTAINS(refusal(), "its images are not 28 x 28");
  write_idx(images, {64, 28, 28}, 7);
  write_idx(labels, {64}, 10);
  CHECK_CONTAINS(refusal(), "it has the label 10, which is none of 0 to 9");
}
