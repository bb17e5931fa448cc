// ctest: TIMEOUT 240 PROCESSORS 2
// Twenty trainings under a sanitizer take too long; integration.launcher kills workers and launchers there.
// ctest: LABELS long no-asan no-tsan
// A real training whose worker or launcher is killed at seeded moments from its start to its end.

#include "integration/prelude.hpp"
#include "support/fashion_mnist_program.hpp"

using fashion_mnist_program::can_run;
using fashion_mnist_program::example;

namespace {

constexpr int world_size = 3;
constexpr int moments = 20;

/// `mark` is a flag's value that tells this training's processes from others.
std::vector<std::string> arguments_for(const std::string& mark) {
  return {"--nproc-per-node=" + std::to_string(world_size), "--epochs=1", "--summary=/tmp/" + mark};
}

std::string mark_of(int round) {
  return "dtrain-killed-" + std::to_string(::getpid()) + "-" + std::to_string(round);
}

/// How long an undisturbed training takes, from its start to its end. @param final_loss gets the one of its summary
std::chrono::milliseconds undisturbed(std::string* final_loss = nullptr) {
  const std::string mark = mark_of(-1);
  const Result result = support::run(example, arguments_for(mark), {}, std::chrono::seconds(120));
  REQUIRE(result.exit_code == 0);
  if (final_loss != nullptr) *final_loss = support::SummaryFile("/tmp/" + mark).text("final_loss");
  std::filesystem::remove("/tmp/" + mark);
  return result.time;
}

/// A moment for each round, spread over the whole time, in an order of its own.
std::chrono::milliseconds moment(int round, std::chrono::milliseconds whole, std::mt19937& random) {
  const double within = static_cast<double>(random() % 1000) / 1000;
  const double share = (round + within) / moments;
  return std::chrono::milliseconds(static_cast<int>(static_cast<double>(whole.count()) * 0.9 * share));
}

}  // namespace

TEST_CASE("kill -9 of a worker at any moment of a training ends all of it within two seconds, and says whom it hit") {
  if (!can_run()) return;
  std::mt19937 random(20);
  std::string final_loss;
  std::chrono::milliseconds whole = undisturbed(&final_loss);
  int ended_before = 0;
  for (int round = 0; round < moments; ++round) {
    CAPTURE(round);
    const std::string mark = mark_of(round);
    Program program(example, arguments_for(mark));
    program.close_input();
    std::this_thread::sleep_for(moment(round, whole, random));
    std::vector<pid_t> workers = support::children_of(program.process());
    const dtrain::Deadline deadline = support::soon();
    while (workers.size() < world_size && round < moments / 2 && !deadline.passed())
      workers = support::children_of(program.process());
    if (workers.size() < world_size) {  // a faster run than the undisturbed one
      ++ended_before;
      whole = std::min(whole, program.wait(support::soon(std::chrono::seconds(60))).time);
      std::filesystem::remove("/tmp/" + mark);
      continue;
    }
    const std::size_t victim = random() % world_size;
    REQUIRE(::kill(workers[victim], SIGKILL) == 0);
    const support::Stopwatch since_killed;
    const Result result = program.wait();
    INFO(result.error);
    CHECK(since_killed.elapsed() < std::chrono::seconds(2));
    support::check_ended(result, 137, {"rank " + std::to_string(victim) + " on host ", "killed by signal 9 (SIGKILL)"});
    CHECK(support::processes_with(mark).empty());
    // There is a summary only if all ranks had made their last step: then it is a whole one, of the same training.
    if (round >= moments / 2 && std::filesystem::exists("/tmp/" + mark)) {
      ++ended_before;
      CHECK(support::SummaryFile("/tmp/" + mark).text("final_loss") == final_loss);
      std::filesystem::remove("/tmp/" + mark);
    }
    CHECK_FALSE(std::filesystem::exists("/tmp/" + mark));
  }
  CHECK(ended_before <= moments / 4);
}

TEST_CASE("kill -9 of the launcher at any moment of a training leaves no worker") {
  if (!can_run()) return;
  std::mt19937 random(21);
  const std::chrono::milliseconds whole = undisturbed();
  for (int round = 0; round < moments; round += 4) {
    CAPTURE(round);
    const std::string mark = mark_of(100 + round);
    Program program(example, arguments_for(mark));
    program.close_input();
    std::this_thread::sleep_for(moment(round, whole, random));
    program.signal(SIGKILL);
    program.wait();
    CHECK(support::all_gone(mark, support::soon(std::chrono::seconds(5))));
    std::filesystem::remove("/tmp/" + mark);
  }
}
