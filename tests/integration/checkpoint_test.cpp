// ctest: TIMEOUT 240 PROCESSORS 2
// ctest: LABELS no-asan no-tsan
// A training that is killed and goes on from its checkpoint ends as if nothing had happened. Minutes under a sanitizer;
// unit.public_interface.checkpoint and unit.ddp.checkpoint.checkpoint_file run the same code there.

#include <sys/stat.h>

#include "integration/prelude.hpp"
#include "support/fashion_mnist_program.hpp"

using fashion_mnist_program::can_run;
using fashion_mnist_program::example;

namespace {

std::vector<std::string> arguments_for(const TemporaryDirectory& folder, std::vector<std::string> more) {
  std::vector<std::string> all{"--nproc-per-node=2", "--epochs=1", "--summary=" + folder.path + "/summary"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Result finished(Program& program) {
  return program.finish(support::soon(std::chrono::seconds(60)));
}

std::string digest_of(const TemporaryDirectory& folder) {
  return SummaryFile(folder.path + "/summary").text("parameters_digest");
}

/// What two ranks reach in an epoch that nothing disturbs and that saves nothing.
const std::string& undisturbed() {
  static const std::string digest = [] {
    const TemporaryDirectory folder;
    Program program(example, arguments_for(folder, {}));
    const Result result = finished(program);
    REQUIRE_MESSAGE(result.exit_code == 0, result.error);
    return digest_of(folder);
  }();
  return digest;
}

/// The workers, once there are as many as there are to be; fewer if the job ends meanwhile.
std::vector<pid_t> workers_of(const Program& program) {
  const dtrain::Deadline deadline = support::soon();
  std::vector<pid_t> workers;
  while ((workers = support::children_of(program.process())).size() < 2 && !deadline.passed())
    ::usleep(1000);
  return workers;
}

/// Whether the checkpoint, which has to exist if `again`, is replaced within a while.
bool saved_again(const TemporaryDirectory& folder, bool again) {
  const auto identity = [&] {
    struct stat status {};
    return ::stat((folder.path + "/checkpoint").c_str(), &status) == 0 ? status.st_ino : 0;
  };
  const ino_t before = identity();
  if (again && before == 0) return false;
  const dtrain::Deadline deadline = support::soon();
  while (identity() == before && !deadline.passed())
    ::usleep(500);
  return identity() != before;
}

}  // namespace

TEST_CASE("workers that are killed at several moments and started again end with the digest of an undisturbed run") {
  if (!can_run()) return;
  constexpr int kills = 4;
  std::mt19937 random(7);
  const TemporaryDirectory folder;
  Program program(example,
                  arguments_for(folder, {"--max-restarts=" + std::to_string(kills),
                                         "--checkpoint=" + folder.path + "/checkpoint", "--checkpoint-steps=2"}));
  for (int kill = 0; kill < kills; ++kill) {
    const std::vector<pid_t> workers = workers_of(program);
    REQUIRE(workers.size() == 2);
    if (kill > 0) {  // the first one comes before there is anything to go on from
      REQUIRE(saved_again(folder, kill > 1));
    }
    ::usleep(static_cast<useconds_t>(random() % 60000));  // into the steps after it, or into the next saving
    REQUIRE(::kill(workers[random() % 2], SIGKILL) == 0);
    REQUIRE(program.wait_for("attempt " + std::to_string(kill + 2) + " of "));
  }
  const Result result = finished(program);
  REQUIRE_MESSAGE(result.exit_code == 0, result.error);
  CHECK_CONTAINS(result.output, "going on from " + folder.path);
  CHECK(digest_of(folder) == undisturbed());
  CHECK(!std::filesystem::exists(folder.path + "/checkpoint.part"));
}

TEST_CASE("a job that is killed with its launcher and started again by hand goes on, and once done stays done") {
  if (!can_run()) return;
  const TemporaryDirectory folder;
  const std::vector<std::string> arguments =
      arguments_for(folder, {"--checkpoint=" + folder.path + "/checkpoint", "--checkpoint-steps=40"});
  {
    Program program(example, arguments);
    const dtrain::Deadline deadline = support::soon(std::chrono::seconds(60));
    while (!std::filesystem::exists(folder.path + "/checkpoint") && !deadline.passed())
      ::usleep(1000);
    program.signal(SIGKILL);
  }
  REQUIRE(support::all_gone(folder.path, support::soon()));
  REQUIRE(std::filesystem::exists(folder.path + "/checkpoint"));
  for (const char* step : {"after step ", "after step 235\n"}) {
    Program again(example, arguments);
    const Result result = finished(again);
    REQUIRE_MESSAGE(result.exit_code == 0, result.error);
    CHECK_CONTAINS(result.output, step);
    CHECK(digest_of(folder) == undisturbed());
  }
}

TEST_CASE("the checkpoint of another training is refused with what it is of") {
  if (!can_run()) return;
  const TemporaryDirectory folder;
  const std::string checkpoint = "--checkpoint=" + folder.path + "/checkpoint";
  Program first(example, arguments_for(folder, {checkpoint, "--global-batch=2000"}));
  REQUIRE(finished(first).exit_code == 0);
  Program other(example, arguments_for(folder, {checkpoint, "--seed=2"}));
  const Result result = finished(other);
  support::check_ended(result, 2,
                       {"is the checkpoint of a training with --epochs=1 --global-batch=2000 --seed=1; go on with "
                        "these, or name another file"});
}
