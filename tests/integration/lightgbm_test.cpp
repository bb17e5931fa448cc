// ctest: TIMEOUT 300 PROCESSORS 2
// ctest: LABELS long no-asan no-tsan
// LightGBM over dtrain's collectives gives the trees that it gives over its own sockets.

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "integration/prelude.hpp"
#include "support/free_port.hpp"

namespace {

const std::string program = DTRAIN_EXAMPLES_DIR "/trees_lightgbm";

/// Friedman's first function with noise of variance 1, on ten numbers of which five count.
void write_rows(const std::string& path, int rows) {
  std::mt19937 engine(1);
  const auto uniform = [&engine] { return static_cast<double>(engine()) / 4294967296.0; };
  std::ofstream file(path);
  for (int row = 0; row < rows; ++row) {
    std::array<double, 10> x{};
    for (double& each : x)
      each = uniform();
    double y = 10 * std::sin(3.14159265 * x[0] * x[1]) + 20 * (x[2] - 0.5) * (x[2] - 0.5) + 10 * x[3] + 5 * x[4];
    for (int i = 0; i < 12; ++i)
      y += uniform() - 0.5;
    file << y;
    for (const double each : x)
      file << ',' << each;
    file << '\n';
  }
}

double trained(const std::string& folder, int ranks, const std::string& model, std::vector<std::string> further = {}) {
  std::vector<std::string> arguments{"--nproc-per-node=" + std::to_string(ranks),
                                     folder + "/rows.csv",
                                     "objective=regression",
                                     "metric=l2",
                                     "is_provide_training_metric=true",
                                     "num_threads=1",
                                     "num_iterations=60",
                                     "output_model=" + folder + "/" + model};
  arguments.insert(arguments.end(), further.begin(), further.end());
  const Result result = support::run(program, arguments, {}, std::chrono::seconds(90));
  REQUIRE_MESSAGE(result.exit_code == 0, result.error);
  const std::string before = "training metric ";
  const std::size_t found = result.output.find(before);
  REQUIRE(found != std::string::npos);
  CHECK_CONTAINS(result.output, " on " + std::to_string(ranks) + " rank(s)");
  return std::stod(result.output.substr(found + before.size()));
}

}  // namespace

TEST_CASE("LightGBM has the model of its own sockets bit for bit, and nearly the loss of one rank") {
  if (!std::filesystem::exists(program)) {
    return dtrain_test::skip("trees_lightgbm was not built: it needs LightGBM's library (pip install lightgbm)");
  }
  const support::TemporaryDirectory files;
  write_rows(files.path + "/rows.csv", 12'000);
  const double alone = trained(files.path, 1, "alone");
  CHECK(alone < 2);  // the noise has 1, a constant 24
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    CHECK(std::abs(trained(files.path, ranks, "dtrain") - alone) < 0.05 * alone);
    std::string machines = "machines=";
    for (int rank = 0; rank < ranks; ++rank)
      machines += (rank == 0 ? "127.0.0.1:" : ",127.0.0.1:") + std::to_string(support::free_port());
    trained(files.path, ranks, "sockets", {machines});
    CHECK(support::content(files.path + "/dtrain") == support::content(files.path + "/sockets"));
  }
}

TEST_CASE("a file that LightGBM cannot open and arguments that are no numbers end the job with a sentence") {
  if (!std::filesystem::exists(program)) {
    return dtrain_test::skip("trees_lightgbm was not built: it needs LightGBM's library (pip install lightgbm)");
  }
  const auto error_of = [](const std::vector<std::string>& arguments) {
    const Result result = support::run(program, arguments, {}, std::chrono::seconds(90));
    CHECK(result.exit_code == 1);
    return result.error;
  };
  CHECK_CONTAINS(error_of({"--nproc-per-node=2", "/nowhere/rows.csv"}), "LightGBM: Cannot open data file");
  CHECK_CONTAINS(error_of({"--nproc-per-node=2"}), "give the file of the training data");
  CHECK_CONTAINS(error_of({"--nproc-per-node=2", "rows.csv", "num_iterations=many"}), "'many' is no number");
}
