// ctest: TIMEOUT 180 RUN_SERIAL ON
// Trainings of minutes under a sanitizer; the same paths run there with small models and ranks as threads
// (unit.public_interface).
// ctest: LABELS no-asan no-tsan
// What the example promises: it learns, and it is one training whatever the ranks and whoever has the optimizer's
// state.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "support/contains.hpp"
#include "support/program.hpp"
#include "support/skip.hpp"
#include "support/summary_file.hpp"
#include "support/temporary_directory.hpp"

namespace {

using support::Program;
using support::Result;
using support::SummaryFile;
using support::TemporaryDirectory;

const std::string example = DTRAIN_EXAMPLES_DIR "/gpt2";
const std::string text = "/usr/share/common-licenses";

bool can_run() {
  if (!std::filesystem::exists(example)) {
    dtrain_test::skip("gpt2 was not built: it needs Eigen");
    return false;
  }
  if (!std::filesystem::exists(text)) {
    dtrain_test::skip("the text is missing: " + text + " is in Debian's package base-files");
    return false;
  }
  return true;
}

Result run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"--layers=2", "--width=64", "--context=32", "--steps=20"});  // later ones win
  Program program(example, arguments);
  program.close_input();
  return program.wait(support::soon(std::chrono::seconds(60)));
}

/// A training of 20 steps of a small model with `arguments` added, which is to succeed.
SummaryFile train(std::vector<std::string> arguments) {
  const TemporaryDirectory folder;
  arguments.push_back("--summary=" + folder.path + "/summary");
  const Result result = run(std::move(arguments));
  INFO(result.error);
  REQUIRE(result.exit_code == 0);
  return SummaryFile(folder.path + "/summary");
}

std::vector<double> losses_of(const SummaryFile& summary) {
  const std::string field = summary.text("losses");
  std::vector<double> losses;
  for (std::size_t at = 0; at != std::string::npos; at = field.find(' ', at + 1)) {
    losses.push_back(std::strtod(field.c_str() + at + 1, nullptr));
  }
  return losses;
}

/// The largest difference between the losses of one step.
double difference(const std::vector<double>& one, const std::vector<double>& other) {
  REQUIRE(one.size() == other.size());
  double largest = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    largest = std::max(largest, std::abs(one[i] - other[i]));
  }
  return largest;
}

}  // namespace

TEST_CASE("one training, whatever the ranks: 1, 2 and 4 of them have the same falling losses") {
  if (!can_run()) return;
  const std::vector<double> of_1 = losses_of(train({"--nproc-per-node=1"}));
  REQUIRE(of_1.size() == 20);
  CHECK(of_1.front() == doctest::Approx(std::log(256)).epsilon(0.02));
  CHECK(of_1.back() < 0.75 * of_1.front());
  for (const char* ranks : {"2", "4"}) {
    CAPTURE(ranks);
    CHECK(difference(losses_of(train({std::string("--nproc-per-node=") + ranks})), of_1) < 1e-3);
  }
}

TEST_CASE("two ranks give the same bits again, also with the optimizer's state divided, each half of it") {
  if (!can_run()) return;
  const SummaryFile whole = train({"--nproc-per-node=2", "--clip=0"});
  CHECK(train({"--nproc-per-node=2", "--clip=0"}).text("parameters_digest") == whole.text("parameters_digest"));
  const SummaryFile divided = train({"--nproc-per-node=2", "--clip=0", "--zero"});
  CHECK(difference(losses_of(divided), losses_of(whole)) < 1e-3);
  CHECK(divided.text("parameters_digest") == whole.text("parameters_digest"));
  const SummaryFile measured = train({"--nproc-per-node=2", "--clip=0", "--plan=measured"});  // with other buckets
  CHECK(measured.text("parameters_digest") == whole.text("parameters_digest"));
  const double parameters = whole.number("parameters");
  CHECK(whole.number("state_bytes") == 8 * parameters);
  CHECK(divided.number("state_bytes") == doctest::Approx(4 * parameters).epsilon(0.02));
  CHECK(whole.number("bytes_reduced_per_step") == 4 * parameters);
}

TEST_CASE("clipped gradients give one training too, with the state whole and divided") {
  if (!can_run()) return;
  const SummaryFile whole = train({"--nproc-per-node=2", "--clip=0.5"});
  CHECK(difference(losses_of(train({"--nproc-per-node=2", "--clip=0.5", "--zero"})), losses_of(whole)) < 1e-3);
  // AdamW's steps hardly depend on the gradients' scale, so the losses are nearly alike, but not the bits.
  CHECK(train({"--nproc-per-node=2", "--clip=0"}).text("parameters_digest") != whole.text("parameters_digest"));
}

TEST_CASE("with hooks that reduce less the loss falls nearly as far") {
  if (!can_run()) return;
  const double plain = train({"--nproc-per-node=2"}).number("final_loss");
  for (const char* hook : {"bf16", "f16"}) {
    CAPTURE(hook);
    CHECK(std::abs(train({"--nproc-per-node=2", std::string("--hook=") + hook}).number("final_loss") - plain) < 0.02);
  }
  CHECK(train({"--nproc-per-node=2", "--hook=power-sgd"}).number("final_loss") < plain + 0.5);
}

TEST_CASE("what does not fit the ranks, the memory or the text is refused in one sentence") {
  if (!can_run()) return;
  const auto refusal = [](std::vector<std::string> arguments) {
    const Result result = run(std::move(arguments));
    CHECK(result.exit_code != 0);
    return result.error;
  };
  CHECK(support::contains(refusal({"--nproc-per-node=3"}), "--batch is 16, which 3 ranks do not divide evenly"));
  CHECK(support::contains(refusal({"--nproc-per-node=1", "--layers=100", "--width=8192", "--batch=100000"}),
                          "MiB, which this host does not have"));
  CHECK(support::contains(refusal({"--nproc-per-node=2", "--text=/etc/hostname"}), "the text has "));
  CHECK(support::contains(refusal({"--nproc-per-node=2", "--zero", "--hook=bf16"}), "cannot be used with --hook=bf16"));
  CHECK(support::contains(refusal({"--nproc-per-node=2", "--zero", "--plan=measured"}), "cannot be used with --plan"));
}
