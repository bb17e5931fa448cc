// ctest: TIMEOUT 240 PROCESSORS 2
// Trainings of minutes under a sanitizer; unit.examples loads and saves small models there.
// ctest: LABELS long no-asan no-tsan
// gpt2 begins with the weights that it has saved, and it and the Python package transformers read each other's.

#include "integration/prelude.hpp"
#include "support/gpt2_program.hpp"

namespace {

using gpt2_program::can_run;
using gpt2_program::losses_of;
using gpt2_program::train;

const std::string context = "32";  // gpt2_program::small_model's

/// One step that changes nothing, of the weights in `folder`.
SummaryFile begun_with(const std::string& folder, std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--nproc-per-node=2", "--load=" + folder, "--steps=1", "--rate=0"});
  return train(std::move(arguments));
}

/// A text of one batch, so that a step's loss is that of the whole text.
std::string text_in(const std::string& folder) {
  const std::string path = folder + "/text";
  std::ofstream(path) << content("/usr/share/common-licenses/GPL-3").substr(0, 16 * 32 + 1);
  return path;
}

/// The number that transformers prints.
double loss_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"-B", DTRAIN_TEST_SUPPORT_DIR "/gpt2_transformers.py"});
  const Result result = support::run(support::peer_python(), arguments, {}, std::chrono::seconds(60));
  INFO(result.error);
  REQUIRE(result.exit_code == 0);
  std::printf("%s: %s", arguments[2].c_str(), result.output.c_str());
  return std::stod(result.output);
}

bool has_transformers() {
  const std::vector<std::string> version{"-B", DTRAIN_TEST_SUPPORT_DIR "/gpt2_transformers.py", "package"};
  const Result result = support::run(support::peer_python(), version, {}, std::chrono::seconds(60));
  std::printf("%s", result.output.c_str());
  return dtrain_test::needs(
      result.exit_code == 0,
      support::peer_python() + " has no transformers with torch; DTRAIN_PEER_PYTHON names one that has");
}

}  // namespace

TEST_CASE("gpt2 begins with the weights that it has saved, to the bit, whoever has the optimizer's state") {
  if (!can_run()) return;
  const TemporaryDirectory folder;
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {}, {"--zero=2"}, {"--dtype=bf16"}, {"--dtype=bf16", "--elastic", "--min-ranks=1"}}) {
    CAPTURE(flags.empty() ? "none" : flags.back());
    std::vector<std::string> arguments{"--nproc-per-node=2", "--save=" + folder.path};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const SummaryFile saved = train(arguments);
    const SummaryFile loaded = begun_with(folder.path, flags);
    CHECK(loaded.text("parameters_digest") == saved.text("parameters_digest"));
    CHECK(losses_of(loaded).front() < 0.9 * losses_of(saved).front());
  }
}

TEST_CASE("transformers gives gpt2's loss with its weights, within 1e-5") {
  if (!can_run() || !has_transformers()) return;
  const TemporaryDirectory folder;
  const std::string text = text_in(folder.path);
  train({"--nproc-per-node=2", "--save=" + folder.path + "/trained"});
  const double here = losses_of(begun_with(folder.path + "/trained", {"--data=" + text})).front();
  CHECK(std::abs(loss_of({"read", folder.path + "/trained", text, context}) - here) < 1e-5);
}

TEST_CASE("gpt2 begins with weights that transformers has saved in f16, and has its loss, within 1e-5") {
  if (!can_run() || !has_transformers()) return;
  const TemporaryDirectory folder;
  const std::string text = text_in(folder.path);
  train({"--nproc-per-node=2", "--steps=1", "--save=" + folder.path + "/small"});
  const double there = loss_of({"make", folder.path + "/made", text, context, folder.path + "/small"});
  CHECK(std::abs(losses_of(begun_with(folder.path + "/made", {"--data=" + text})).front() - there) < 1e-5);
}
