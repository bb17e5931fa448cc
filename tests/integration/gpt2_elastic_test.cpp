// ctest: TIMEOUT 240
// ctest: LABELS long
// gpt2 --elastic: a worker is killed in the middle, and the losses are those of an undisturbed training.

#include "integration/prelude.hpp"
#include "support/gpt2_program.hpp"

using namespace gpt2_program;

namespace {

std::vector<std::string> arguments_of(const std::string& folder, int ranks, const std::string& name) {
  return {"--nproc-per-node=" + std::to_string(ranks),
          "--min-ranks=1",
          "--max-restarts=1",
          "--elastic",
          "--steps=60",
          "--layers=1",
          "--channels=32",
          "--context=32",
          "--global-batch=8",
          "--commit-log=" + folder + "/" + name,
          "--summary=" + folder + "/" + name + ".json"};
}

/// The processes that have written a commit log.
std::vector<pid_t> processes_of(const std::string& folder, const std::string& name) {
  std::vector<pid_t> found;
  for (const auto& each : std::filesystem::directory_iterator(folder)) {
    const std::string file = each.path().filename();
    const std::string number = file.substr(std::min(file.size(), name.size() + 1));
    if (file.starts_with(name + ".") && number.find_first_not_of("0123456789") == std::string::npos) {
      found.push_back(static_cast<pid_t>(std::stol(number)));
    }
  }
  return found;
}

}  // namespace

TEST_CASE("a killed worker changes the losses by their rounding only") {
  if (!can_run()) return;
  const TemporaryDirectory folder;
  for (const std::string& dtype : {std::string("f32"), std::string("bf16")}) {
    CAPTURE(dtype);
    const std::string calm = "calm_" + dtype;
    std::vector<std::string> arguments = arguments_of(folder.path, 1, calm);
    arguments.push_back("--dtype=" + dtype);
    const Result alone = Program(example, arguments).wait();
    REQUIRE_MESSAGE(alone.exit_code == 0, alone.error);

    // A job that ends before its worker is killed tries again.
    std::string killed;
    Result result;
    for (int attempt = 0; attempt < 10 && result.error.find("was lost: killed by signal 9") == std::string::npos;
         ++attempt) {
      killed = "killed_" + dtype + "_" + std::to_string(attempt);
      arguments = arguments_of(folder.path, 3, killed);  // of 8 sequences, ranks have 3, 3 and 2
      arguments.push_back("--dtype=" + dtype);
      Program job(example, arguments);
      REQUIRE(job.wait_for("step 10 of 60"));
      const std::vector<pid_t> workers = processes_of(folder.path, killed);
      REQUIRE(workers.size() == 3);
      REQUIRE_MESSAGE((::kill(workers.front(), SIGKILL) == 0 || errno == ESRCH), "kill: " << errno);
      result = job.wait(support::soon(std::chrono::seconds(60)));
      REQUIRE_MESSAGE(result.exit_code == 0, result.error);
    }
    CHECK(result.error.find("was lost: killed by signal 9") != std::string::npos);
    CHECK(result.output.find("going on after step") != std::string::npos);
    const std::vector<double> expected = losses_of(SummaryFile(folder.path + "/" + calm + ".json"));
    const std::vector<double> losses = losses_of(SummaryFile(folder.path + "/" + killed + ".json"));
    REQUIRE(expected.size() == 60);
    REQUIRE(losses.size() == 60);
    CHECK(losses.back() < losses.front());
    for (std::size_t step = 0; step < losses.size(); ++step) {
      CAPTURE(step);
      CHECK(losses[step] == doctest::Approx(expected[step]).epsilon(dtype == "f32" ? 1e-3 : 2e-2));
    }
  }
}
